#!/usr/bin/env python3
"""Reads the machine code of the kernels for sm_90a and compares it with a table: registers, bytes
of stack (what was spilled), loads and stores of 128 bits, fp64 operations, all instructions, and
those that a thread executes for each element: the longest way through a turn of the loop that loads
most, without calls (which are those of divisions and roots that need more than the usual steps).
A turn's elements, the column before, are the sources' vectors and unrolling, written by hand.
Kernels that multiply by warpgroups have two columns more: such products, and loads of tiles.

usage: machine_code.py CUOBJDUMP MODULE TABLE [--update]
Exit codes: 0 all within the table's bounds, 1 something is not, 77 no cuobjdump.
"""
import re
import shutil
import subprocess
import sys
from collections import Counter

ARCHITECTURE = "sm_90a"
REGISTERS_MOST = 64  # so that four blocks of 256 threads fit on a multiprocessor
WARPGROUP_REGISTERS_MOST = 168  # one block of 384 threads
COLUMNS = ("registers", "stack", "loads128", "stores128", "fp64", "all", "turn", "each")
WARPGROUP_COLUMNS = ("products", "tiles")
AT_LEAST = ("loads128", "stores128", *WARPGROUP_COLUMNS)  # others: at most
WITH_TENTH = ("all", "each")  # a tenth to spare
INSTRUCTION = re.compile(
    r"\s+/\*([0-9a-f]{4,5})\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)([^;]*);")
IMPOSSIBLE = -10**9
FP64 = ("DADD", "DMUL", "DFMA", "F2F.F64")


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def short_names(symbols):
    """Readable and free of what the compiler makes up: namespaces, hashes, parameters."""
    names = subprocess.run(["c++filt"], input="\n".join(symbols), check=True, capture_output=True,
                           text=True).stdout.splitlines()
    types = {"0": "none", "1": "f32", "2": "bf16", "3": "f16", "4": "e4m3", "5": "split"}
    others = {"(FactorOrder)0": "rows", "(FactorOrder)1": "columns", "(TileDeal)0": "alone",
              "(TileDeal)1": "pairs"}
    short = []
    for name in names:
        name = re.sub(r"\(anonymous namespace\)::|kernels::|^void ", "", name)
        name = re.sub(r"\(ElementType\)(\d)", lambda match: types[match.group(1)], name)
        name = re.sub(r"\((?:FactorOrder|TileDeal)\)\d", lambda match: others[match.group()], name)
        name = re.sub(r"(unsigned) (int|short)", r"\1_\2", name)
        short.append(name.split("(")[0].replace(" ", "").replace(",", "/"))
    return dict(zip(symbols, short))


class Code:
    """One kernel's instructions, in order, and where its branches lead."""

    def __init__(self):
        self.instructions = []  # address, name, whether it may be passed over, its target
        self.waits = {}  # by barrier: where threads meet again

    def add(self, address, predicate, name, operands):
        target = re.search(r"0x([0-9a-f]+)", operands)
        target = int(target.group(1), 16) if target else None
        barrier = re.search(r"\bB\d+", operands)
        if name.startswith("BSSY"):
            self.waits[barrier.group(0)] = target
        if name.startswith("BSYNC"):
            target = self.waits.get(barrier.group(0))
        is_conditional = bool(predicate) or bool(re.search(r"\bU?P\d", operands))
        self.instructions.append((address, name, is_conditional, target))

    def hot_loop(self):
        """First and last index of the loop within which there is none and most is loaded."""
        places = {instruction[0]: i for i, instruction in enumerate(self.instructions)}
        loops = [(places[target], i) for i, (address, name, _, target)
                 in enumerate(self.instructions)
                 if name.startswith("BRA") and target is not None and target < address]
        loads = {loop: sum(loaded_bytes(name) for _, name, _, _
                           in self.instructions[loop[0]:loop[1] + 1]) for loop in loops}
        inner = [loop for loop in loops if loads[loop] and not any(
            loop[0] <= other[0] and other[1] <= loop[1] and other != loop and loads[other] >= 16
            for other in loops)]
        return max(inner, key=lambda loop: loads[loop], default=None)

    def longest_way(self, first, last):
        """Instructions of the longest way from the first to the last, none of it taken twice."""
        ways = {self.instructions[last][0]: 1}
        for i in range(last - 1, first - 1, -1):
            address, name, is_conditional, target = self.instructions[i]
            following = [self.instructions[i + 1][0]]
            if name.startswith(("BRA", "BSYNC")) and target is not None:
                following = [target] + (following if is_conditional else [])
            ends = name.startswith("CALL") or (name.startswith("EXIT") and not is_conditional)
            ways[address] = IMPOSSIBLE if ends else 1 + max(
                (ways[next_one] for next_one in following if next_one in ways and
                 next_one > address), default=IMPOSSIBLE)
        return ways[self.instructions[first][0]]


def loaded_bytes(name):
    if not name.startswith("LDG"):
        return 0
    widths = {"128": 16, "64": 8, "U16": 2, "U8": 1}
    return next((widths[part] for part in name.split(".") if part in widths), 4)


def measure(cuobjdump, module):
    """By symbol: a Counter of COLUMNS."""
    kernels = {}
    usage = output_of(cuobjdump, "-res-usage", "-arch", ARCHITECTURE, module)
    for symbol, registers, stack in re.findall(
            r"Function (\S+):\s+REG:(\d+) STACK:(\d+)", usage):
        kernels[symbol] = Counter(registers=int(registers), stack=int(stack))
    counts, code, codes = Counter(), Code(), {}
    for line in output_of(cuobjdump, "-sass", "-arch", ARCHITECTURE, module).splitlines():
        if "Function :" in line:
            counts = kernels[line.split()[-1]]
            code = codes[line.split()[-1]] = Code()
        elif match := INSTRUCTION.match(line):
            address, predicate, name, operands = match.groups()
            code.add(int(address, 16), predicate, name, operands)
            counts["all"] += 1
            counts["loads128"] += name.startswith("LDG") and ".128" in name
            counts["stores128"] += name.startswith("STG") and ".128" in name
            counts["fp64"] += name.startswith(FP64)
            counts["products"] += name.startswith("HGMMA")
            counts["tiles"] += name.startswith("UTMALDG")
    for symbol, counts in kernels.items():
        if loop := codes[symbol].hot_loop():
            counts["loop"] = codes[symbol].longest_way(*loop)
    names = short_names(list(kernels))
    return {names[symbol]: counts for symbol, counts in kernels.items()}


def with_turns(found, rows):
    """What is executed for each element, by the table's numbers of elements in a turn."""
    for name, counts in found.items():
        counts["turn"] = rows.get(name, Counter())["turn"]
        if counts["turn"]:
            counts["each"] = -(-counts["loop"] // counts["turn"])


def read_table(path):
    """The rows, and the lines before them."""
    rows, head = {}, []
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.startswith("#"):
                head.append(line)
                continue
            name, *numbers = line.split()
            rows[name] = Counter(dict(zip(COLUMNS + WARPGROUP_COLUMNS, map(int, numbers))))
    return rows, head


def faults_of(name, found, bound):
    """What is wrong with one kernel."""
    faults = []
    for column in COLUMNS + WARPGROUP_COLUMNS:
        limit = bound[column] * 11 // 10 if column in WITH_TENTH else bound[column]
        if column in AT_LEAST and found[column] < limit:
            faults.append(f"{name}: {column} {found[column]}, at least {limit} expected")
        if column not in AT_LEAST and found[column] > limit:
            faults.append(f"{name}: {column} {found[column]}, at most {limit} expected")
    most = WARPGROUP_REGISTERS_MOST if found["products"] else REGISTERS_MOST
    if found["registers"] > most:
        faults.append(f"{name}: {found['registers']} registers, at most {most}")
    return faults


def main():
    cuobjdump, module, table = sys.argv[1:4]
    if shutil.which(cuobjdump) is None:
        print("SKIP: there is no cuobjdump")
        return 77
    found = measure(cuobjdump, module)
    rows, head = read_table(table)
    with_turns(found, rows)
    if "--update" in sys.argv:
        width = max(map(len, found))
        with open(table, "w", encoding="utf-8") as file:
            file.writelines(head)
            for name in sorted(found):
                columns = COLUMNS + (WARPGROUP_COLUMNS if found[name]["products"] else ())
                numbers = " ".join(f"{found[name][column]:5}" for column in columns)
                file.write(f"{name:{width}} {numbers}\n")
        return 0
    faults = [f"{name}: not in the table" for name in found if name not in rows]
    faults += [f"{name}: is in the table only" for name in rows if name not in found]
    for name in found.keys() & rows.keys():
        faults += faults_of(name, found[name], rows[name])
    for fault in sorted(faults):
        print(fault)
    print(f"{len(found)} kernels, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
