"""Raw outputs to answers, a module a task; `headrace/ir/task.py` lists them."""
