"""The outline of a C++ source: its includes, its functions, its string literals, and its code
without comments and literals.

No parser: it follows braces, and takes a block for a function when what stands before it ends like
a function's head. Right for the style of this project; a lambda counts as lines of the function
that it stands in.
"""
import re
from dataclasses import dataclass

# In order: comments, raw strings, strings, characters (not the ' of 1'000), preprocessor lines.
_TOKENS = re.compile(
    r"""//[^\n]*|/\*.*?\*/"""
    r"""|R"(?P<delimiter>[^(\s]*)\(.*?\)(?P=delimiter)\""""
    r'''|"(?:\\.|[^"\\\n])*"'''
    r"""|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'"""
    r"""|^[ \t]*\#(?:\\\n|[^\n])*""",
    re.DOTALL | re.MULTILINE)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)
_TYPE_HEAD = re.compile(r"^(?:\w+\s+|\[\[.*?\]\]\s*)*?(?:class|struct|union|enum)\b")
_FUNCTION_TAIL = re.compile(
    r"\)\s*(?:const|noexcept(?:\([^)]*\))?|override|final|mutable|requires\b.*|&{1,2}|->.*|\s)*$",
    re.DOTALL)
_CONSTRUCTOR_LIST = re.compile(r"\)\s*(?:noexcept\s*)?(?<!:):(?!:)(?P<list>.*)$", re.DOTALL)


def blank(text):
    """Spaces where text was, the same lines."""
    return re.sub(r"[^\n]", " ", text)


def _literals_of(text):
    """(line, text) of each string literal; neighbours that the compiler joins are one."""
    line, joined, end = 0, None, 0
    for match in _TOKENS.finditer(text):
        if not match.group().startswith('"'):
            continue
        if joined is not None and text[end:match.start()].strip():
            yield line, joined
            joined = None
        if joined is None:
            line, joined = text.count("\n", 0, match.start()) + 1, ""
        joined += match.group()[1:-1]
        end = match.end()
    if joined is not None:
        yield line, joined


def _blank_token(match):
    token = match.group()
    if token.startswith(("/", "#")) or token.lstrip().startswith("#"):
        return blank(token)
    return '"' + blank(token[1:-1]) + '"'  # a literal stays a value


@dataclass
class Function:
    name: str
    line: int
    line_count: int
    parameter_count: int
    is_kernel: bool


class Outline:
    def __init__(self, text):
        self.code = _TOKENS.sub(_blank_token, text)
        self.includes = [(text.count("\n", 0, m.start()) + 1, m.group(1))
                         for m in _INCLUDE.finditer(text)]
        self.literals = list(_literals_of(text))
        self.functions = []
        self._find_functions()

    def _line_of(self, offset):
        return self.code.count("\n", 0, offset) + 1

    def _find_functions(self):
        scopes = []  # of each open brace: ("scope" | "function" | "block" | "part", head, offset)
        head_begin = 0
        parens = 0
        for match in re.finditer(r"[{}();]", self.code):
            mark, offset = match.group(), match.start()
            if mark in "()":
                parens += 1 if mark == "(" else -1
            elif mark == "{":
                head = self.code[head_begin:offset]
                kind = self._kind(head, parens > 0, scopes)
                scopes.append((kind, head_begin, parens))
                parens = 0
                if kind == "scope":
                    head_begin = offset + 1
            elif mark == "}" and scopes:
                kind, begin, parens = scopes.pop()
                if kind == "function":
                    self._add_function(begin, offset)
                if kind != "part":
                    head_begin = offset + 1
            elif mark == ";" and parens == 0 and (not scopes or scopes[-1][0] == "scope"):
                head_begin = offset + 1

    @staticmethod
    def _kind(head, in_parens, scopes):
        if in_parens or (scopes and scopes[-1][0] in ("function", "block", "part")):
            return "part"
        plain = _without_templates(re.sub(r"\b(public|private|protected)\s*:", " ", head)).strip()
        if not plain or re.match(r"(inline\s+)?namespace\b|extern\b\s*\"", plain):
            return "scope"
        if _TYPE_HEAD.match(plain):
            return "block" if re.match(r"enum\b", plain) else "scope"
        listed = _CONSTRUCTOR_LIST.search(plain)
        if listed:  # Name(...) : member_{value}, ... {
            return "part" if re.search(r"[\w>]$", listed.group("list")) else "function"
        return "function" if _FUNCTION_TAIL.search(plain) else "block"

    def _add_function(self, begin, end):
        head = self.code[begin:self.code.index("{", begin)]
        plain = re.sub(r"\b(public|private|protected)\s*:(?!:)", lambda m: blank(m.group()), head)
        begin += len(plain) - len(plain.lstrip())
        line = self._line_of(begin)
        name = re.search(r"([\w:~]+|operator\s*\S+?)\s*\(", _without_templates(plain))
        self.functions.append(Function(
            name=name.group(1) if name else "lambda",
            line=line,
            line_count=self._line_of(end) - line + 1,
            parameter_count=_parameter_count(_without_templates(plain)),
            is_kernel="__global__" in plain))


def _without_templates(head):
    """Drops `template <...>`, which may hold the words class and struct, and __launch_bounds__."""
    head = re.sub(r"__launch_bounds__\([^)]*\)", "", head)
    while True:
        match = re.search(r"\btemplate\s*<", head)
        if not match:
            return head
        depth, end = 1, match.end()
        while end < len(head) and depth:
            depth += {"<": 1, ">": -1}.get(head[end], 0)
            end += 1
        head = head[:match.start()] + head[end:]


def _parameter_count(head):
    """How many parameters a head declares; a last one called `options` is not counted."""
    begin = re.search(r"(?:operator\s*\(\s*\)|\w|operator[^\w\s(]+)\s*(\()", head)
    if not begin:
        return 0
    depth, parameters = 0, [""]
    for mark in head[begin.end():]:
        if mark == ")" and depth == 0:
            break
        depth += {"(": 1, "<": 1, "[": 1, ")": -1, ">": -1, "]": -1}.get(mark, 0)
        if mark == "," and depth == 0:
            parameters.append("")
        else:
            parameters[-1] += mark
    if not parameters[-1].strip() or re.search(r"\boptions\b", parameters[-1]):
        parameters.pop()
    return len(parameters)
