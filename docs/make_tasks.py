"""Write the table of tasks in README.md from their list, `headrace/ir/task.py`.

python docs/make_tasks.py     (make docs)
"""

from __future__ import annotations

from pathlib import Path

from headrace.ir import TASK_RULES, Head, Task, TaskRules
from headrace.runtime.tasks.registry import commands

PAGE = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- tasks: written by docs/make_tasks.py -->", "<!-- end of tasks -->"
HEADS = {
    Head.NONE: "a model without a head",
    Head.SEQUENCE: "a sequence head",
    Head.TOKEN: "a token head",
    Head.SPAN: "a span head",
    Head.CHOICE: "a choice head",
    Head.MASKED_LM: "a masked-LM head",
    Head.CAUSAL_LM: "a causal-LM head",
    Head.SEQ2SEQ_LM: "a seq2seq-LM head",
    Head.OTHER: "any other head",
}


def main() -> None:
    """Write the table into the page."""
    PAGE.write_text(document(PAGE.read_text()))
    print(f"wrote {PAGE}")


def document(page: str) -> str:
    """The page with the table as the tasks are now."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


def table() -> str:
    """A row a task."""
    typed = {task for task, *_ in commands()}
    rows = [row(task, rules, task in typed) for task, rules in TASK_RULES.items()]
    return "\n".join(["| task | what it can | offered by | it needs | command |", "|---|---|---|---|---|", *rows])


def row(task: Task, rules: TaskRules, typed: bool) -> str:
    """What the list knows of a task."""
    command = f"`headrace {task.replace('_', '-')}`" if typed else ""
    return f"| {task} | {rules.does} | {heads(rules)} | {rules.needs} | {command} |"


def heads(rules: TaskRules) -> str:
    """The heads that offer a task; without one only sentence-transformers modules do."""
    named = ", ".join(HEADS[head] for head in rules.heads) or "sentence-transformers modules"
    if rules.entails:
        return f"{named} with a label of entailment"
    return f"{named} of one label" if rules.one_label else named


if __name__ == "__main__":
    main()
