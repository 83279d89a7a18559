#!/bin/sh
# escape.sh PROGRAM VERSION: no text in a file, and no file name, reaches the terminal unescaped: text output has no
# control characters, and JSON output is valid JSON.
set -u
tested=''
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
command -v python3 >/dev/null || {
  echo 'waived: no python3 to make such files'
  exit 77
}
python3 - "$weir" "$work" "$(dirname "$0")/../data" <<'END' || failed=1
import glob, json, os, pickle, re, subprocess, sys
weir, work, data = sys.argv[1:]
evil = "\x1b]0;title\x07\x1b[31m\nnew line\r\t\x00\x7f\x9b31m\u202e\u2028 \udc80 é 漢字"
path = os.fsencode(work) + b"/n\x1b[31m\nm\xff\xc3.pickle"
wrong = 0

def fail(what, command, text):
    global wrong
    wrong = 1
    print(what, command, text[:2000])

def run(command, env=None, **options):
    done = subprocess.run([os.fsencode(weir)] + [c if isinstance(c, bytes) else c.encode() for c in command],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, **options)
    if done.returncode < 0:
        fail("died", command, done.stderr)
    return done

def check(*command, **options):
    done = run(command, **options)
    for stream in done.stdout, done.stderr:
        try:
            text = stream.decode()
        except UnicodeDecodeError:
            fail("not UTF-8", command, stream)
            continue
        if re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", text) or "\nnew line" in text or "\nm" in text:
            fail("not escaped", command, stream)
    return done

def check_json(*command):
    done = check(*command)
    for line in done.stdout.decode(errors="replace").splitlines():
        try:
            json.loads(line)
        except ValueError as error:
            fail(error, command, done.stdout)

def frames(n):
    return [{"name": evil + str(n), "filename": evil + "/" + evil, "line": n},
            {"name": "é" * n, "filename": "漢" * n, "line": n}]

def event(action, addr, size, time, **more):
    return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": time, "frames": frames(time % 60),
            "user_metadata": evil, "compile_context": evil, evil: evil, **more}

mib = 1 << 20
events = [event("segment_alloc", 20 * mib, 20 * mib, 1)]
for i in range(8):
    events.append(event("alloc", 20 * mib + 2 * i * mib, 2 * mib, 2 + i))
events.append({"action": "oom", "device_free": 5, "size": 30 * mib, "stream": 0, "time_us": 20, "frames": frames(20)})
blocks = [{"address": 20 * mib + 2 * i * mib, "size": 2 * mib, "requested_size": 2 * mib, "state": "active_allocated",
           "frames": frames(2 + i), evil: 1} for i in range(8)]
blocks.append({"address": 36 * mib, "size": 4 * mib, "requested_size": 0, "state": "inactive", "frames": []})
snapshot = {
    "segments": [{"device": 0, "address": 20 * mib, "total_size": 20 * mib, "allocated_size": 16 * mib,
                  "active_size": 16 * mib, "requested_size": 16 * mib, "stream": 0, "segment_type": "large",
                  "segment_pool_id": (0, 0), "is_expandable": False, "frames": frames(1), "blocks": blocks, evil: 1}],
    "device_traces": [events],
    "allocator_settings": {evil: evil, "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:200"},
    "external_annotations": [{"name": evil, "stage": "START", "device": 0, "time_us": 0}],
    evil: 1,
}
def write(value):
    with open(path, "wb") as file:
        pickle.dump(value, file)

def every():
    for command in (["summary"], ["explain"], ["explain", "--at", "peak"], ["replay"], ["replay", "--check"],
                    ["whatif", "--conf", "expandable_segments:True", "--force"], ["tune", "--force"],
                    ["redact", "-o", path + b".copy"]):
        check(*command, path)
        check_json(*command, "--json", path)
    check("export", "--to", "csv", "--device", "9", path)
    for form in "json", "perfetto":
        done = run(["export", "--to", form, path])
        if done.returncode == 0:
            json.loads(done.stdout.decode())
    for table in "events", "frames", "annotations", "settings":
        run(["export", "--to", "csv", "--table", table, path]).stdout.decode()

write(snapshot)
every()
snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = evil
write(snapshot)
every()
# Errors contain the file name, keys and texts.
blocks[0]["state"] = evil
write(snapshot)
every()
for value in {"segments": evil}, {evil: 1}, [evil], evil, {"segments": [{evil: evil}]}:
    write(value)
    every()
os.unlink(path)
every()
os.mkdir(path)
every()
# The command line.
check(evil.replace("\x00", "").encode("utf-8", "surrogatepass"))
for text in evil.replace("\x00", "").encode("utf-8", "surrogatepass"), b"\xff\xfe\x1b[31m":
    check("lint", text)
    check_json("lint", "--json", text)
    check("lint", b"max_split_size_mb:" + text)
    check("summary", b"--" + text)
    check("whatif", "--conf", text, data + "/small_snapshot.pickle")
    check("explain", "--device", text, data + "/small_snapshot.pickle")
    check("export", "--to", text, data + "/small_snapshot.pickle")
    check("redact", "-o", b"/none/" + text, data + "/small_snapshot.pickle")
# A recording has the bytes that a program passed, valid UTF-8 or not.
env = dict(os.environ, WEIR_DRIVER="soft", WEIR_RECORD=work + "/rings", WEIR_RECORD_MB="4")
run(["demo"], env=env)
ring = open(glob.glob(work + "/rings/*.ring")[0], "rb").read()
os.rmdir(path)
for name in sorted(set(re.findall(rb"[A-Za-z_.]{6,40}", ring[:1000000])))[:12]:
    with open(path, "wb") as file:
        file.write(ring.replace(name, (b"\xff\xc3\x1b[3\n" * 8)[: len(name)]))
    for command in ["summary"], ["explain"]:
        check(*command, path)
    for form in "json", "perfetto":
        done = run(["export", "--to", form, path])
        if done.returncode == 0:
            json.loads(done.stdout.decode())
sys.exit(wrong)
END
exit "$failed"
