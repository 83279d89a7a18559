#!/usr/bin/env python3
"""Checks each line of files against a JSON Schema: check_schema.py SCHEMA FILE...

Knows the keywords that the schemas of digests and of findings use, and refuses others, so that none is ignored.
"""
import json
import re
import sys

TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
KNOWN = {"$schema", "title", "description", "type", "additionalProperties", "required", "properties", "items", "const",
         "enum", "pattern", "minimum", "maximum", "maxLength"}


def check(schema, value, where):
    if set(schema) - KNOWN:
        sys.exit(f"the schema has {set(schema) - KNOWN}, which is not known here")
    kind = schema.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or isinstance(value, bool) != (kind == "boolean")):
        sys.exit(f"{where}: {value!r} is no {kind}")
    if "const" in schema and value != schema["const"]:
        sys.exit(f"{where}: {value!r}, expected {schema['const']!r}")
    if "enum" in schema and value not in schema["enum"]:
        sys.exit(f"{where}: {value!r} is none of {schema['enum']}")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        sys.exit(f"{where}: {value!r} does not match {schema['pattern']}")
    if not schema.get("minimum", value) <= value if kind == "integer" else False:
        sys.exit(f"{where}: {value} is below {schema['minimum']}")
    if not value <= schema.get("maximum", value) if kind == "integer" else False:
        sys.exit(f"{where}: {value} is above {schema['maximum']}")
    if len(value) > schema["maxLength"] if "maxLength" in schema else False:
        sys.exit(f"{where}: a text of {len(value)} characters")
    if kind == "object":
        members = schema["properties"]
        for name in set(schema["required"]) - set(value):
            sys.exit(f"{where}: {name} is missing")
        for name in value:
            if name not in members:
                sys.exit(f"{where}: {name} is not in the schema")
            check(members[name], value[name], f"{where}.{name}")
    if kind == "array":
        for i, item in enumerate(value):
            check(schema["items"], item, f"{where}[{i}]")


with open(sys.argv[1], encoding="utf-8") as file:
    root = json.load(file)
count = 0
for path in sys.argv[2:]:
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            check(root, json.loads(line), f"{path}:{number}")
            count += 1
print(count)
