"""rlfw sample and rlfw samples: what a trained model writes now, and what it wrote over its training."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import rlfw
from rlfw.cli import main
from rlfw.report import over_training
from rlfw.sampling import told

pytestmark = pytest.mark.medium

SIZES = ["policy.causal_lm.hidden_size=16", "policy.causal_lm.num_layers=1", "policy.causal_lm.num_heads=2"]
TEXT = ["algorithm=grpo", "env=reverse", *SIZES, "warmup.steps=2", "sampler.episodes.num_episodes=8", "progress=false"]
REWARDS = """
def right(completion, answer):
    return float(completion == answer)

def short(completion):
    return None if len(completion) > 3 else -len(completion) / 10
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a text task."""
    return rlfw.train([*TEXT, "iterations=3", "seed=4", f"out={tmp_path_factory.mktemp('runs') / 'run'}"])


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on prompts from a file, two of them held out, with two reward functions."""
    here = tmp_path_factory.mktemp("own")
    (here / "mine.py").write_text(REWARDS)
    (here / "data.jsonl").write_text('{"prompt": "ab", "answer": "ba"}\n{"prompt": "abc", "answer": "cba"}\n')
    (here / "held.jsonl").write_text('{"prompt": "ba", "answer": "ab"}\n{"prompt": "cb", "answer": "bc"}\n')
    files = [f"env.prompts.file={here}/data.jsonl", f"env.prompts.eval_file={here}/held.jsonl"]
    words = ["env.prompts.rewards=[right,short]", "env.prompts.max_new_tokens=5", f"plugins=[{here}/mine.py]"]
    size = ["sampler.episodes.num_episodes=8", "iterations=1", "progress=false"]
    return rlfw.train(
        ["algorithm=grpo", "env=prompts", "policy=causal_lm", *SIZES, *files, *words, *size, f"out={here / 'run'}"]
    )


def sampled(capsys: pytest.CaptureFixture[str], *words: object) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["sample", *map(str, words), "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


# ------------------------------------------------------------------------------------------------ rlfw sample


def test_it_shows_what_an_evaluation_scores(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same prompts in the same order, so the same mean of each number."""
    found = sampled(capsys, run, "--n", 40, "--greedy")
    assert main(["eval", str(run), "--episodes", "40", "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    for name, values in (
        ("score", [row["reward"] for row in found]),
        ("exact", [row["scores"]["exact"] for row in found]),
        ("length", [row["length"] for row in found]),
    ):
        assert metrics[name]["mean"] == pytest.approx(sum(values) / 40)
    assert all(row["reward"] == (row["completion"] == row["prompt"][2:-1][::-1]) for row in found)


def test_the_newest_checkpoint_writes_or_the_one_that_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, at in ((run, "00000003"), (run / "checkpoints" / "00000002", "00000002")):
        assert main(["sample", str(path), "--n", "1"]) == 0
        assert capsys.readouterr().err.strip() == f"rlfw: {run / 'checkpoints' / at}"


def test_sampling_changes_nothing_and_repeats_itself(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    first = sampled(capsys, run)
    assert len(first) == 8
    assert sampled(capsys, run) == first
    assert [row["prompt"] for row in sampled(capsys, run, "--seed", 9)] != [row["prompt"] for row in first]
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_own_prompts_have_completions_and_no_reward(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = sampled(capsys, run, "--prompt", "r:abc=", "--prompt", "r:dd=", "--n", 3, "--max-new-tokens", 2)
    assert [row["prompt"] for row in found] == ["r:abc="] * 3 + ["r:dd="] * 3
    assert all(row.keys() == {"prompt", "completion", "finish", "length"} for row in found)
    assert all(row["length"] == 2 or row["finish"] == "stop" for row in found)
    assert all(len(row["completion"]) == row["length"] - (row["finish"] == "stop") for row in found)
    cold = sampled(capsys, run, "--prompt", "r:abc=", "--n", 3, "policy.causal_lm.temperature=0.001")
    assert cold == sampled(capsys, run, "--prompt", "r:abc=", "--greedy") * 3


def test_held_out_prompts_each_once_with_every_reward(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = f"plugins=[{own / 'plugins' / 'mine.py'}]"
    found = sampled(capsys, own, plugin)
    assert sorted(row["prompt"] for row in found) == ["ba", "cb"]
    for row in found:
        text = row["completion"]
        right, short = float(text == row["prompt"][::-1]), None if len(text) > 3 else -len(text) / 10
        assert row["scores"] == {"right": right, "short": short}
        assert row["reward"] == pytest.approx(right + (short or 0))
    assert main(["sample", str(own)]) == 2
    assert "the run used parts of its own: add plugins=" in capsys.readouterr().err


def test_lines_of_the_input_are_prompts(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("r:abc=\nr:é=\nr:dd="))
    assert main(["sample", str(run), "--prompt", "-", "--json"]) == 2  # one could not be asked
    printed = capsys.readouterr()
    assert [json.loads(line)["prompt"] for line in printed.out.splitlines()] == ["r:abc=", "r:dd="]
    assert "the prompt 'r:é=' has the character 'é'" in printed.err


def test_a_folder_of_a_model_alone_writes_too(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = run / "checkpoints" / "00000003" / "policy"
    words = ("--prompt", "r:abc=", "--greedy", "--max-new-tokens", 5)
    assert sampled(capsys, policy, *words) == sampled(capsys, run, *words)
    assert len(sampled(capsys, policy, "--prompt", "r:abc=")) == 1  # the default leaves room in a small context
    assert main(["sample", str(policy)]) == 2
    assert "give --prompt TEXT" in capsys.readouterr().err
    assert main(["sample", str(policy), "--prompt", "a", "policy.causal_lm.chat=true"]) == 2
    assert "this model has no chat template" in capsys.readouterr().err


def test_no_escape_sequence_reaches_a_terminal() -> None:
    record = {"prompt": "one\ntwo", "completion": "\x1b[2J\u202eab", "finish": "length", "length": 1}
    assert told(record) == "prompt      one\n            two\ncompletion  \\x1b[2J\\u202eab\n            1 token, cut"
    scored = {**record, "scores": {"a": 0.5, "b": None}, "reward": 0.5, "finish": "stop", "length": 7}
    assert told(scored).splitlines()[-1].strip() == "reward 0.5 (a 0.5, b none); 7 tokens, ended by itself"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--n", "0"], "--n 0: at least 1"),
        (["--max-new-tokens", "0"], "--max-new-tokens 0: at least 1"),
        (["--prompt", "r:a=", "--greedy", "--n", "2"], "a greedy completion is the same each time"),
        (["--prompt", "r:a=", "--max-new-tokens", "99"], "more than the model's context of 15"),
        (["--prompt", ""], "has no tokens"),
        (["--prompt", "-", "--prompt", "a"], "give no other one"),
        (["policy.causal_lm.hidden_size=8"], "policy.causal_lm.hidden_size cannot change here"),
        (["lr=1"], "lr cannot change here"),
        (["--nn"], "rlfw sample --help shows"),
    ],
)
def test_wrong_words_are_refused(words: list[str], message: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", str(run), *words]) == 2
    assert message in capsys.readouterr().err


def test_what_writes_no_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", str(tmp_path)]) == 2
    assert "holds neither a run nor a model" in capsys.readouterr().err
    sizes = ["sampler.steps.num_envs=2", "sampler.steps.num_steps=16", "iterations=1", "progress=false"]
    out = rlfw.train(["algorithm=ppo", "env=cartpole", *sizes, f"out={tmp_path / 'run'}"])
    assert main(["sample", str(out)]) == 2
    assert "a run of env=CartPole-v1 writes no text: rlfw eval plays it" in capsys.readouterr().err
    assert main(["samples", str(out)]) == 2
    assert "has no samples.jsonl" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ rlfw samples


class Table(HTMLParser):
    """The text of every cell of a page's table, row by row; whatever else it holds by its tag."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.rows[-1][-1] += data


def wrote(run: Path, tmp_path: Path, rows: list[dict[str, Any]]) -> Path:
    """A run's folder with these samples."""
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(run / "config.yaml", folder)
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def row(iteration: int, completion: str, reward: float | None, **more: Any) -> dict[str, Any]:
    scores = {"one": reward, "two": 3.0}
    return {"iteration": iteration, "prompt": "p", "completion": completion, "finish": "stop", "length": 2,
            "scores": scores, "reward": reward, "advantage": -1.5, **more}  # fmt: skip


def test_a_page_of_a_run_has_a_row_a_sample(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "page.html"
    assert main(["samples", str(run), "--rows", "8", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    head, *body = Table(out.read_text()).rows
    assert " ".join(head) == "iteration prompt completion exact reward advantage length finish shown as"
    records = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    assert [(int(line[0]), line[1], line[2]) for line in body] == [
        (record["iteration"], record["prompt"], record["completion"]) for record in records
    ]
    assert not (run / "samples.html").exists()


def test_which_samples_are_shown(run: Path, tmp_path: Path) -> None:
    """Of iterations 10 to 109 those at 10 + 99 k / 3; of 12 rows the first and the seventh, and both ends of reward."""
    rewards = [5.0, 1.0, 9.0, None, 2.0, 2.0, 2.0, 8.0, 0.0, 7.0, 3.0, 3.0]
    rows = [row(i, f"{i}-{k}", reward) for i in range(10, 110) for k, reward in enumerate(rewards)]
    chosen = over_training.choose(wrote(run, tmp_path, rows), iterations=4, per_iteration=2)
    assert chosen.span == (10, 109)
    assert chosen.iterations == [10, 43, 76, 109]
    assert [(line.completion, line.picked) for line in chosen.lines[:6]] == [
        ("10-0", "evenly"),
        ("10-1", "lowest"),
        ("10-2", "highest"),
        ("10-6", "evenly"),
        ("10-7", "highest"),
        ("10-8", "lowest"),
    ]
    assert len(chosen.lines) == 4 * 6
    assert [line.first for line in chosen.lines] == [True, *[False] * 5] * 4


def test_equal_rewards_have_no_extremes_and_gaps_are_passed_over(run: Path, tmp_path: Path) -> None:
    rows = [row(i, "x", 1.0) for i in (1, 1, 1, 2, 90, 100)]
    chosen = over_training.choose(wrote(run, tmp_path, rows), iterations=3, per_iteration=2)
    assert [(line.iteration, line.picked) for line in chosen.lines] == [
        (1, "evenly"), (1, "evenly"), (90, "evenly"), (100, "evenly")
    ]  # fmt: skip


EVIL = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "\" onmouseover=alert(1) x='",
    "\x1b[31m\x00\u202e\u2066",
    "{{ 7 * 7 }}",
    "\ud800",
]


def test_text_on_the_page_is_never_markup_or_a_control_code(run: Path, tmp_path: Path) -> None:
    rows = [row(1, evil, 1.0, prompt=evil, finish=evil, scores={evil: 1.0}) for evil in EVIL]
    folder = wrote(run, tmp_path, rows)
    over_training.write(folder, folder / "samples.html")
    page = (folder / "samples.html").read_text()
    assert not {"\x1b", "\x00", "\u202e", "\u2066"} & set(page)
    table = Table(page)
    assert table.tags.count("script") == 1
    assert "img" not in table.tags
    assert [line[2] for line in table.rows[1:]] == [
        *EVIL[:3],
        "\\x1b[31m\\x00\\u202e\\u2066",
        "{{ 7 * 7 }}",
        "\\ud800",
    ]
    assert not re.findall(r"""(?:src|href|srcset)=["'](?!data:)""", page.replace("&lt;img src=x", ""))
    assert "default-src 'none'" in page


def test_a_long_text_is_cut_and_the_page_stays_small(run: Path, tmp_path: Path) -> None:
    rows = [row(i, "x" * 20_000, float(k)) for i in range(100) for k in range(20)]  # 40 MB
    folder = wrote(run, tmp_path, rows)
    chosen = over_training.write(folder, folder / "samples.html")
    assert len(chosen.lines) == 25 * (6 + 3)  # of 20 rows 0, 3, 6, 10, 13, 16; of 18, 19, 0, 1 three are others
    page = (folder / "samples.html").read_text()
    assert len(page) < 1_000_000
    assert "… (18,000 more characters)" in page


def test_a_page_has_an_end(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = wrote(run, tmp_path, [row(i, "x", 1.0) for i in range(10) for _ in range(10)])
    monkeypatch.setattr(over_training, "MOST", 99)
    assert main(["samples", str(folder), "--rows", "10"]) == 2
    assert "100 samples are more than a page takes (99): lower --iterations or --rows" in capsys.readouterr().err
    assert main(["samples", str(folder), "--rows", "9"]) == 0


def test_a_file_that_is_being_written_is_read_as_far_as_it_goes(run: Path, tmp_path: Path) -> None:
    folder = wrote(run, tmp_path, [row(1, "a", 1.0)])
    with (folder / "samples.jsonl").open("a") as file:
        file.write('{"iteration": 2, "prom')
    assert [line.completion for line in over_training.choose(folder).lines] == ["a"]


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        ("", [], "holds no whole line yet"),
        ('{"iteration": 1}\n', [], "is not as a run writes it: KeyError('prompt')"),
        ('{"a" 1}\n', [], "is not as a run writes it"),
        ('{"iteration": 1}\n', ["--iterations", "1"], "--iterations 1: at least 2"),
        ('{"iteration": 1}\n', ["--rows", "0"], "--rows 0: at least 1"),
    ],
)
def test_what_cannot_be_a_page_is_refused(
    content: str, words: list[str], message: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = wrote(run, tmp_path, [])
    (folder / "samples.jsonl").write_text(content)
    assert main(["samples", str(folder), *words]) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "samples.html").exists()


CHROMIUM = shutil.which("chromium")
DRIVEN = """<script>
document.querySelectorAll("#samples th button")[5].click();
document.querySelectorAll("#samples th button")[5].click();
const wanted = document.getElementById("wanted");
wanted.value = "KEEP";
wanted.dispatchEvent(new Event("input"));
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian's package)")
def test_in_a_browser_the_page_sorts_and_filters(run: Path, tmp_path: Path) -> None:
    """By reward, downwards at the second click, what has none at the end; and only what was asked for stays."""
    rewards = {"keep a": 2.0, "keep b": 10.0, "other": 5.0, "keep c": None, "keep d": -1.0}
    rows = [row(i, text, reward) for i, (text, reward) in enumerate(rewards.items())]
    folder = wrote(run, tmp_path, rows)
    over_training.write(folder, folder / "samples.html")
    file = tmp_path / "driven.html"
    file.write_text((folder / "samples.html").read_text().replace("</body>", DRIVEN))
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    done = subprocess.run(
        [str(CHROMIUM), *flags, f"--user-data-dir={tmp_path / 'profile'}", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "CONSOLE" not in done.stderr
    body = done.stdout[done.stdout.index("<tbody>") : done.stdout.index("</tbody>")]
    lines = re.findall(r"<tr([^>]*)>(.*?)</tr>", body, re.DOTALL)
    told = [re.findall(r'<div class="text" dir="auto">(.*?)</div>', cells)[1] for _, cells in lines]
    assert told == ["keep b", "other", "keep a", "keep d", "keep c"]
    assert [text for (flags_of, _), text in zip(lines, told, strict=True) if "hidden" in flags_of] == ["other"]
    assert "4 of 5 samples" in done.stdout
