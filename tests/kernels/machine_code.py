#!/usr/bin/env python3
"""Reads the machine code of the kernels for sm_90a and compares it with a table: registers, bytes
of stack (what was spilled), loads and stores of 128 bits, fp64 operations, all instructions.

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
COLUMNS = ("registers", "stack", "loads128", "stores128", "fp64", "all")
AT_LEAST = ("loads128", "stores128")  # others: at most, `all` with a tenth to spare
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")
FP64 = ("DADD", "DMUL", "DFMA", "F2F.F64")


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def short_names(symbols):
    """Readable and free of what the compiler makes up: namespaces, hashes, parameters."""
    names = subprocess.run(["c++filt"], input="\n".join(symbols), check=True, capture_output=True,
                           text=True).stdout.splitlines()
    types = {"0": "none", "1": "f32", "2": "bf16", "3": "f16", "4": "e4m3", "5": "split"}
    short = []
    for name in names:
        name = re.sub(r"\(anonymous namespace\)::|kernels::|^void ", "", name)
        name = re.sub(r"\(ElementType\)(\d)", lambda match: types[match.group(1)], name)
        name = re.sub(r"(unsigned) (int|short)", r"\1_\2", name)
        short.append(name.split("(")[0].replace(" ", "").replace(",", "/"))
    return dict(zip(symbols, short))


def measure(cuobjdump, module):
    """By symbol: a Counter of COLUMNS."""
    kernels = {}
    usage = output_of(cuobjdump, "-res-usage", "-arch", ARCHITECTURE, module)
    for symbol, registers, stack in re.findall(
            r"Function (\S+):\s+REG:(\d+) STACK:(\d+)", usage):
        kernels[symbol] = Counter(registers=int(registers), stack=int(stack))
    counts = Counter()
    for line in output_of(cuobjdump, "-sass", "-arch", ARCHITECTURE, module).splitlines():
        if "Function :" in line:
            counts = kernels[line.split()[-1]]
        elif match := INSTRUCTION.match(line):
            name = match.group(1)
            counts["all"] += 1
            counts["loads128"] += name.startswith("LDG") and ".128" in name
            counts["stores128"] += name.startswith("STG") and ".128" in name
            counts["fp64"] += name.startswith(FP64)
    names = short_names(list(kernels))
    return {names[symbol]: counts for symbol, counts in kernels.items()}


def read_table(path):
    """The rows, and the lines before them."""
    rows, head = {}, []
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.startswith("#"):
                head.append(line)
                continue
            name, *numbers = line.split()
            rows[name] = Counter(dict(zip(COLUMNS, map(int, numbers))))
    return rows, head


def faults_of(name, found, bound):
    """What is wrong with one kernel."""
    faults = []
    for column in COLUMNS:
        limit = bound[column] * 11 // 10 if column == "all" else bound[column]
        if column in AT_LEAST and found[column] < limit:
            faults.append(f"{name}: {column} {found[column]}, at least {limit} expected")
        if column not in AT_LEAST and found[column] > limit:
            faults.append(f"{name}: {column} {found[column]}, at most {limit} expected")
    if found["registers"] > REGISTERS_MOST:
        faults.append(f"{name}: {found['registers']} registers, at most {REGISTERS_MOST}")
    return faults


def main():
    cuobjdump, module, table = sys.argv[1:4]
    if shutil.which(cuobjdump) is None:
        print("SKIP: there is no cuobjdump")
        return 77
    found = measure(cuobjdump, module)
    rows, head = read_table(table)
    if "--update" in sys.argv:
        width = max(map(len, found))
        with open(table, "w", encoding="utf-8") as file:
            file.writelines(head)
            for name in sorted(found):
                numbers = " ".join(f"{found[name][column]:5}" for column in COLUMNS)
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
