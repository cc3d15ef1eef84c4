"""AMD's pseudocode to Python over arrays: what an instruction does to a lane, written once for all lanes of all waves.

A condition becomes a mask: both branches are computed, and lanes choose. What the grammar below does not know is
refused, never guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

TOKEN = re.compile(
    r"(?P<cast>\d+'[IUFB](?=\())|(?P<kind>\d+'[IUFB](?![\w(]))|(?P<sized>\d+'(?:0x[0-9a-fA-F]+|\d+)U?)"
    r"|(?P<number>0x[0-9a-fA-F]+|\d+\.\d+|\d+)(?:ULL|LL|U|F)?|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign><>|<<|>>|\*\*|&&|\|\||==|!=|>=|<=|\+=|-=|[-+*/%&|^~!<>=?:.,;()\[\]{}])"
)
# Binary operators by how tightly they bind, loosest first.
LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!=", "<>"), ("<", ">", "<=", ">="), ("<<", ">>"),
          ("+", "-"), ("*", "/", "%"))  # fmt: skip
LOGIC = {"||": "|", "&&": "&"}
TYPES = (
    "u1", "i1", "u4", "i4", "u8", "i8", "b8", "u16", "i16", "b16", "f16", "bf16", "i24", "u24", "u32", "i32", "b32",
    "f32", "u64", "i64", "b64", "f64", "fp8", "bf8",
)  # fmt: skip
CONSTANTS = {"INF": "INF", "NAN": "NAN", "OVERFLOW_F32": "INF", "UNDERFLOW_F32": "0.0"}
ENDS = (";", "if", "elsif", "else", "endif", "endfor")  # of a sentence
OUTPUTS = ("D0", "D1", "SCC", "VCC", "EXEC")


class UnknownPseudocodeError(Exception):
    """A sentence that the grammar does not know."""


@dataclass
class Translation:
    """One instruction's function.

    Attributes:
        source: of a Python function of the `inputs`, which returns the `outputs` as a tuple.
        outputs: each a name, with ` lane` behind it where it is a bit for each lane and not the whole.
    """

    source: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass
class _Writer:
    """Walks the tokens once and writes Python."""

    tokens: list[str]
    place: int = 0
    lines: list[str] = field(default_factory=list)
    mask: str = ""
    made: int = 0
    depth: int = 1
    live: str = ""
    read: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)
    written: dict[str, None] = field(default_factory=dict)
    local: set[str] = field(default_factory=set)

    def peek(self) -> str:
        return self.tokens[self.place] if self.place < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        found = self.peek()
        if not found or (wanted and found != wanted):
            near = " ".join(self.tokens[max(0, self.place - 5) : self.place + 5])
            raise UnknownPseudocodeError(f"{wanted or 'more'} was expected at {found!r}: {near}")
        self.place += 1
        return found

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def fresh(self) -> str:
        self.made += 1
        return f"_{self.made}"

    # Statements

    def block(self, ends: tuple[str, ...]) -> None:
        while self.peek() not in ends:
            if self.peek() == ";":
                self.take()
            else:
                self.statement()

    def statement(self) -> None:
        word = self.peek()
        if word == "declare":
            self.declare()
        elif word == "if":
            self.condition()
        elif word == "for":
            self.loop()
        elif word == "break":
            self.take()
            self.emit(f"{self.live} = {self.live} & ~{self.mask}")
        else:
            self.assignment()

    def declare(self) -> None:
        self.take()
        name = self.take()
        self.take(":")
        bits = int(self.take().partition("'")[0])
        if self.peek() == "[":
            raise UnknownPseudocodeError("an array of one's own")
        self.local.add(name)
        self.emit(f"{name} = zeros({bits})")

    def condition(self) -> None:
        outer, before = self.mask, ""
        while self.peek() in ("if", "elsif"):
            self.take()
            told = f"truth({self.expression()})"
            self.take("then")
            before = self._branch(outer, before, told)
        if self.peek() == "else":
            self.take()
            self._branch(outer, before, "")
        self.take("endif")
        self.mask = outer

    def _branch(self, outer: str, before: str, told: str) -> str:
        """One branch; returns the lanes that took it or one before."""
        mine = self.fresh()
        parts = [part for part in (outer, f"~{before}" if before else "", told) if part]
        self.emit(f"{mine} = {' & '.join(parts)}")
        self.mask = mine
        self.block(("elsif", "else", "endif"))
        taken = self.fresh()
        self.emit(f"{taken} = {f'{before} | ' if before else ''}{mine}")
        return taken

    def loop(self) -> None:
        """Unrolled by Python's own loop; who breaks takes no further part."""
        self.take()
        name = self.take()
        self.take("in")
        first = self.expression()
        self.take(":")
        last = self.expression()
        self.take("do")
        outer, self.live = self.mask, self.fresh()
        self.local.add(name)
        self.emit(f"{self.live} = {outer or 'ALL'}")
        self.emit(f"for {name} in range({first}, {last} + 1):")
        self.depth += 1
        self.mask = self.live
        self.block(("endfor",))
        self.take()
        self.depth -= 1
        self.mask, self.live = outer, ""

    def assignment(self) -> None:
        if self.peek() == "{":
            raise UnknownPseudocodeError("parts assigned together")
        targets: list[tuple[str, str, str, str]] = []
        while not targets or self._assigns_again():
            targets.append(self.target())
            sign = self.take()
            if sign not in ("=", "+=", "-="):
                raise UnknownPseudocodeError(f"{sign!r} behind {targets[-1][0]}")
        value = self.expression()
        for target in targets:
            self.store(*target, sign, value)

    def _assigns_again(self) -> bool:
        """Whether what follows, up to the end of the sentence, is an assignment itself."""
        rest = self.tokens[self.place :]
        end = next((place for place, word in enumerate(rest) if word in ENDS), len(rest))
        return "=" in rest[:end]

    def target(self) -> tuple[str, str, str, str]:
        """A name, the type it is taken as, and the bits of it: `laneId`, or from high to low."""
        name, kind, high, low = self.take(), "", "", ""
        while self.peek() in (".", "["):
            if self.take() == ".":
                kind = self.take()
            elif self.peek() == "laneId":
                high = self.take()
                self.take("]")
            else:
                high = self.expression()
                self.take(":")
                low = self.expression()
                self.take("]")
        return name, kind, high, low

    def store(self, name: str, kind: str, high: str, low: str, sign: str, value: str) -> None:
        lane = high == "laneId" or (name == "VCC" and not kind)
        if lane or name == "SCC":
            value = f"truth({value})"
        elif high:
            bits = f"typed({value}, '{kind}')" if kind else value
            value = f"deposit({name}, {high}, {low}, {bits})"
            self._read_first(name)
        elif kind:
            if sign != "=":
                self._read_first(name)
                value = f"as_{kind}({name}) {sign[0]} {value}"
            value = f"typed({value}, '{kind}')"
        if name in OUTPUTS:
            self.written[f"{name} lane" if lane else name] = None
        else:
            self.local.add(name)
        told = f"{name}_lane" if lane else name
        self.emit(f"{told} = {value}" if not self.mask else f"{told} = chosen({self.mask}, {value}, {told})")
        if not self.mask:
            self.whole.add(told)

    # Expressions

    def expression(self) -> str:
        told = self.binary(0)
        if self.peek() != "?":
            return told
        self.take()
        yes = self.expression()
        self.take(":")
        return f"either({told}, {yes}, {self.expression()})"

    def binary(self, level: int) -> str:
        if level == len(LEVELS):
            return self.power()
        left = self.binary(level + 1)
        while self.peek() in LEVELS[level]:
            sign = self.take()
            right = self.binary(level + 1)
            left = _joined(left, sign, right)
        return left

    def power(self) -> str:
        base = self.unary()
        if self.peek() != "**":
            return base
        self.take()
        return f"power({base}, {self.unary()})"

    def unary(self) -> str:
        sign = self.peek()
        if sign not in ("-", "+", "~", "!"):
            return self.postfix()
        self.take()
        inner = self.unary()
        return {"-": f"(-{inner})", "+": inner, "~": f"(~{inner})", "!": f"(~truth({inner}))"}[sign]

    def postfix(self) -> str:
        told = self.primary()
        while self.peek() in (".", "["):
            if self.take() == ".":
                kind = self.take()
                if kind not in TYPES:
                    raise UnknownPseudocodeError(f"the type {kind!r}")
                told = CONSTANTS.get(told, told) if told in ("INF", "NAN") else f"as_{kind}({told})"
            elif self.peek() == "laneId":
                self.take()
                self.take("]")
                name = re.sub(r"^as_u64\((\w+)\)$", r"\1", told)
                told = f"{name}_lane"
                self.read.discard(name)
                self._read_first(told)
            else:
                told = self._indexed(told)
        return told

    def _indexed(self, told: str) -> str:
        first = self.expression()
        if self.peek() == ":":
            self.take()
            second = self.expression()
            self.take("]")
            return f"bits({told}, {first}, {second})"
        self.take("]")
        return f"bit({told}, {first})"

    def primary(self) -> str:
        word = self.take()
        if word == "(":
            told = self.expression()
            self.take(")")
            return f"({told})"
        if word == "{":
            parts = [self.expression()]
            while self.peek() == ",":
                self.take()
                parts.append(self.expression())
            self.take("}")
            return f"together({', '.join(parts)})"
        if cast := re.fullmatch(r"(\d+)'([IUFB])", word):
            self.take("(")
            told = self.expression()
            self.take(")")
            return f"cast({told}, '{cast[2].lower()}{cast[1]}')"
        if sized := re.fullmatch(r"(\d+)'(0x[0-9a-fA-F]+|\d+)U?", word):
            return sized[2]
        if word[0].isdigit():
            return word
        return self._named(word)

    def _named(self, word: str) -> str:
        if word == "WAVE_MODE":
            self.take(".")
            return f"MODE_{self.take()}"
        if self.peek() == "(":
            self.take()
            told = [self.expression()] if self.peek() != ")" else []
            while self.peek() == ",":
                self.take()
                told.append(self.expression())
            self.take(")")
            return f"call_{word}({', '.join(told)})"
        self._read_first(word)
        return CONSTANTS.get(word, word)

    def _read_first(self, name: str) -> None:
        if name not in self.local and name not in self.whole and name not in CONSTANTS and name != "DENORM":
            self.read.add(name)


def _joined(left: str, sign: str, right: str) -> str:
    if right.startswith("as_") and "(DENORM)" in right:
        return f"denormal({left}, '{right[3:6]}')"
    if sign in LOGIC:
        return f"(truth({left}) {LOGIC[sign]} truth({right}))"
    if sign in ("<<", ">>"):
        return f"shifted({left}, '{sign}', {right})"
    return f"({left} {'!=' if sign == '<>' else sign} {right})"


def tokens(text: str) -> list[str]:
    """The words of a text, its comments left out.

    Raises:
        UnknownPseudocodeError: at a character that begins none.
    """
    plain = re.sub(r"//[^\n]*", "", text)
    found, at = [], 0
    while at < len(plain):
        if plain[at].isspace():
            at += 1
            continue
        match = TOKEN.match(plain, at)
        if match is None:
            raise UnknownPseudocodeError(f"the text {plain[at : at + 20]!r}")
        found.append(match[match.lastgroup or 0])
        at = match.end()
    return found


def translate(text: str, name: str, before: str = "") -> Translation:
    """A function of that name for one instruction's pseudocode.

    Args:
        before: sentences that AMD's text leaves out, put ahead of it.

    Raises:
        UnknownPseudocodeError: it says something that the grammar does not know.
    """
    writer = _Writer(tokens(f"{before}\n{text}"))
    writer.block(("",))
    outputs = tuple(writer.written)
    inputs = tuple(sorted(writer.read))
    started = [
        f"{told.replace(' lane', '_lane')} = None" for told in outputs if told.replace(" lane", "_lane") not in inputs
    ]
    started += [f"{told} = None" for told in sorted(writer.local) if f"{told} = zeros" not in "".join(writer.lines)]
    returned = ", ".join(told.replace(" lane", "_lane") for told in outputs)
    body = [f"    {line}" for line in started] + writer.lines + [f"    return ({returned},)"]
    return Translation(f"def {name}({', '.join(inputs)}):\n" + "\n".join(body) + "\n", inputs, outputs)
