"""Files of texts to files of vectors, a part at a time: what is written once is not made again."""
