"""Prompts and reward functions from files of the user's: what is read, what is refused, what sets a run apart."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from rlfw.cli import main
from rlfw.config import compose
from rlfw.envs.prompts import Prompts
from rlfw.envs.table import read_table
from rlfw.errors import UserError
from rlfw.interfaces import EpisodeGroups
from rlfw.policies.causal_lm import CausalLM
from rlfw.registry import load_components
from rlfw.seeding import Streams
from rlfw.study.settings import identity

REWARDS = """
import os
from shutil import which
from rlfw.envs.tasks import exact as theirs

def exact(completion, answer):
    return float(completion == answer)

def short(completions):
    return [-len(text) for text in completions]

def asks(completion, colour):
    return 0

async def level(completion, level):
    return level

class Longest:
    def __call__(self, completion):
        return len(completion)

longest = Longest()
NUMBER = 3
"""
ROWS = [{"prompt": f"r:{w}=", "answer": w[::-1], "level": i} for i, w in enumerate(["abc", "bca", "cab", "aab"])]
OTHERS = [{"prompt": "r:xyz=", "answer": "zyx", "level": 9}, {"prompt": "r:zz=", "answer": "zz", "level": 9}]


def jsonl(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with prompts, others held out, and a file of reward functions."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.jsonl").write_text(jsonl(*ROWS))
    (tmp_path / "held.jsonl").write_text(jsonl(*OTHERS))
    (tmp_path / "prompts_rewards.py").write_text(REWARDS)
    return tmp_path


def make(**keys: object) -> Prompts:
    load_components(["prompts_rewards.py"])
    return Prompts(Streams(0), **{"file": "data.jsonl", "rewards": ["exact"], "max_new_tokens": 4, **keys})


# ------------------------------------------------------------------------------------------------ tables


def test_jsonl_and_csv_hold_the_same(tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes(
        b'\xef\xbb\xbf{"prompt": "a,\\nb", "answer": "\xc3\xbc"}\r\n\n{"answer": "", "prompt": "c"}'
    )
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbfprompt,answer\r\n"a,\nb",\xc3\xbc\r\n\r\nc,\r\n')
    expected = {"prompt": ["a,\nb", "c"], "answer": ["ü", ""]}
    for name, lines in (("a.jsonl", [1, 3]), ("a.csv", [3, 5])):
        table = read_table("file", str(tmp_path / name))
        assert (table.columns, table.lines) == (expected, lines)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"prompt": "a"}\n{"prompt": \n', "line 2 is no JSON: Expecting value"),
        ("a.jsonl", '{"prompt": "a"}\n\n["b"]\n', 'line 3 is no object: a line reads {"prompt"'),
        ("a.jsonl", '{"prompt": "a", "x": 1, "x": 2}\n', "line 1 is no JSON: it has x twice"),
        ("a.jsonl", '{"prompt": "a", "x": 1}\n{"prompt": "b", "y": 1}\n', "line 2 has the columns prompt, y and"),
        ("a.jsonl", '{"prompt": "a", "x": 1}\n{"prompt": "b"}\n', "columns prompt and line 1 has prompt, x"),
        ("a.jsonl", '{"prompt": "a"}\n{"answer": "b"}\n', "line 2 has the columns answer and line 1 has prompt"),
        ("a.jsonl", "\n \n", "has no rows"),
        ("a.jsonl", b'{"prompt": "a"}\n{"prompt": "\xfc"}\n', "line 2: this is no UTF-8: save the file in"),
        ("a.jsonl", "[" * 100000, "line 1 is no JSON"),
        ("a.csv", "prompt,answer\na,b\nc\n", "line 3 has 1 values for 2 columns"),
        ("a.csv", "prompt,answer\na,b,c\n", "line 2 has 3 values for 2 columns"),
        ("a.csv", "prompt,x,x\na,b,c\n", "has two columns x: rename one"),
        ("a.csv", "prompt,,x\na,b,c\n", "column 2 has no name: the first line names them all"),
        ("a.csv", 'prompt,answer\na,"b"c\n', "line 2 is no CSV"),
        ("a.csv", 'prompt,answer\na,"b\n', "is no CSV"),
        ("a.csv", "prompt,answer\n", "has no rows"),
        ("a.csv", "", "has no rows"),
        ("a.csv", b"prompt\n\xff\xfea\n", "line 2: this is no UTF-8"),
        ("a.json", "[]", "the name of a file of examples ends in .jsonl or .csv"),
        ("a.jsonl", None, "No such file or directory"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_table_is_refused_with_its_line(
    name: str, content: str | bytes | None, message: str, tmp_path: Path
):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as error:
        read_table("env.prompts.file", str(path))
    assert str(error.value).startswith(f"env.prompts.file={path}")
    assert message in str(error.value)


# ------------------------------------------------------------------------------------------------ the env


@pytest.mark.usefixtures("here")
def test_the_file_gives_prompts_answers_and_columns():
    env = make(rewards=["exact", "short", "level", "longest"], weights={"short": 0.1}, eval_file="held.jsonl")
    assert env.task.prompts == [row["prompt"] for row in ROWS]
    assert env.task.answers == [row["answer"] for row in ROWS]
    assert env.task.columns == {"level": [0, 1, 2, 3]}
    assert env.score_names == ("exact", "short", "level", "longest")
    assert env.rewards.weights == {"exact": 1, "short": 0.1, "level": 1, "longest": 1}
    assert set(env.spec.alphabet) == set("r:=abcxyz")  # a policy made for the task reads the held-out prompts too
    assert env.spec.max_prompt_chars == len("r:abc=")


@pytest.mark.usefixtures("here")
def test_evaluation_asks_the_held_out_prompts_once_each():
    env = make(rewards=["level"], eval_file="held.jsonl")
    policy = CausalLM(env.spec, Streams(0), hidden_size=8, num_layers=1, num_heads=1)
    found = env.evaluate(policy.actor(Streams(1)), 2, Streams(2))
    assert found["level"] == found["score"] == [9, 9]
    for refusing, num, message in (
        (env, 3, "would ask some of the 2 prompts of env.prompts.eval_file twice"),
        (make(), 1, "set env.prompts.eval_file=FILE"),
    ):
        with pytest.raises(UserError, match=message):
            refusing.check_evaluation(num)
        with pytest.raises(UserError, match=message):
            refusing.evaluate(policy.actor(Streams(1)), num, Streams(2))


@pytest.mark.parametrize(
    ("rows", "keys", "message"),
    [
        ([{"question": "a"}], {}, "data.jsonl has no column prompt; there are question"),
        ([{"prompt": "a"}, {"prompt": ""}], {}, "line 2: the prompt is empty"),
        ([{"prompt": "a\ud800"}], {}, 'line 1: the prompt is "a\\ud800", with half of a surrogate pair'),
        ([{"prompt": "a"}, {"prompt": None}], {}, "line 2: the prompt is null; it must be text"),
        ([{"prompt": "a", "answer": 12}], {}, "line 1: the answer is 12; it must be text: put it in quotes"),
        ([{"prompt": "a", "finish": 1}], {}, "the column finish has the name of what reward functions"),
        ([{"prompt": "a", "completion": 1}], {}, "the column completion has the name of"),
        (ROWS, {"rewards": ["exakt"]}, "env.prompts.rewards: there is no reward function exakt; did you mean exact?"),
        (ROWS, {"rewards": ["exact", "exact"]}, "env.prompts.rewards=[exact,exact] names a function twice"),
        (ROWS, {"rewards": ["x.py:f"]}, "a file is named by plugins=[x.py], its function by env.prompts.rewards=[f]"),
        (ROWS, {"rewards": ["asks"]}, "asks for colour; there are prompt, completion, ids, finish, answer, level"),
        ([{"prompt": "a"}], {}, "the reward function exact asks for answer; there are prompt, completion"),
        (ROWS, {"rewards": ["NUMBER"]}, "there is no reward function NUMBER"),
        (ROWS, {"rewards": ["Longest"]}, "Longest is a class: name an object of it, as in longest = Longest()"),
        (ROWS, {"weights": {"short": 1.0}}, "a weight for the reward function short"),
        (ROWS, {"max_new_tokens": 0}, "max_new_tokens=0: it must be at least 1"),
        (ROWS, {"workers": 0}, "workers=0: it must be at least 1"),
        (ROWS, {"timeout": -1.0}, "timeout=-1.0"),
        (ROWS, {"eval_file": "no.csv"}, "env.prompts.eval_file=no.csv: No such file"),
        (ROWS, {"eval_file": "data.jsonl"}, "line 1 is line 1 of env.prompts.file=data.jsonl too"),
        ([{"prompt": "a", "answer": "b"}], {"eval_file": "held.jsonl"}, "has the columns prompt, answer, level and"),
        (ROWS, {"reward_models": {"exact": "x"}}, "env.prompts.reward_models both have exact"),
        (ROWS, {"reward_models": {"rm": "x"}}, "env.prompts.reward_models.rm=x: there is no such folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_is_written(
    rows: list[dict[str, object]], keys: dict[str, object], message: str, here: Path
):
    (here / "data.jsonl").write_text(jsonl(*rows))
    with pytest.raises(UserError) as error:
        make(**keys)
    assert message in str(error.value)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", ["which", "theirs", "os", "os.system", "__import__", "load_components"])
def test_a_configuration_reaches_nothing_that_a_plugin_merely_imports(name: str):
    with pytest.raises(UserError, match=f"there is no reward function {name}"):
        make(rewards=[name])


def test_two_files_may_not_define_one_name(here: Path):
    (here / "prompts_others.py").write_text("def exact(completion):\n    return 0\n")
    load_components(["prompts_others.py"])
    with pytest.raises(UserError, match=r"prompts_others.py and .*prompts_rewards.py both define exact: rename one"):
        make()


# ------------------------------------------------------------------------------------------------ runs

WORDS = [
    "algorithm=grpo", "env=prompts", "policy=causal_lm", "policy.causal_lm.hidden_size=8",
    "policy.causal_lm.num_heads=1", "policy.causal_lm.num_layers=1", "sampler.episodes.num_episodes=8",
    "sampler.episodes.group_size=2",
    "env.prompts.file=data.jsonl", "env.prompts.max_new_tokens=4", "progress=false", "tensorboard=false",
]  # fmt: skip
MINE = ["plugins=[prompts_rewards.py]", "env.prompts.rewards=[exact,short,level]", "env.prompts.weights.level=0"]


def rows_of(run: str) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("tim", "perf"))} for row in rows]


@pytest.mark.medium
def test_a_run_is_the_same_with_workers_and_goes_on_with_its_own_files_alone(
    here: Path, capsys: pytest.CaptureFixture[str]
):
    words = ["train", *WORDS, *MINE, "env.prompts.eval_file=held.jsonl", "evaluation.every=1", "evaluation.episodes=2"]
    assert main([*words, "iterations=4", "out=whole"]) == 0
    assert main([*words, "iterations=4", "out=pooled", "env.prompts.workers=4", "env.prompts.timeout=60"]) == 0
    assert rows_of("pooled") == rows_of("whole")
    assert (here / "whole" / "plugins" / "prompts_rewards.py").read_text() == REWARDS

    assert main([*words, "iterations=2", "out=cut"]) == 0
    again = ["train", "resume=cut", "iterations=4"]
    capsys.readouterr()
    assert main(again) == 2
    assert "add plugins=[cut/plugins/prompts_rewards.py]" in capsys.readouterr().err
    (here / "prompts_rewards.py").write_text(REWARDS + "# changed\n")
    assert main([*again, "plugins=[prompts_rewards.py]"]) == 2
    assert "is not what the run began with" in capsys.readouterr().err
    (here / "prompts_rewards.py").write_text(REWARDS)
    (here / "data.jsonl").write_text(jsonl(*ROWS[::-1]))
    assert main([*again, "plugins=[prompts_rewards.py]"]) == 2
    assert "env.prompts.file=data.jsonl is not what the run began with" in capsys.readouterr().err
    (here / "data.jsonl").write_text(jsonl(*ROWS))
    assert main([*again, "plugins=[prompts_rewards.py]"]) == 0
    assert rows_of("cut") == rows_of("whole")


@pytest.mark.medium
def test_a_file_alone_names_functions_but_no_code(here: Path, capsys: pytest.CaptureFixture[str]):
    node = {"env": {"prompts": {"rewards": ["short"]}}}
    (here / "mine.yaml").write_text(yaml.safe_dump(node))
    words = ["train", *WORDS, "experiment=mine.yaml", "iterations=1"]
    assert main([*words, "out=a"]) == 2
    assert "there is no reward function short" in capsys.readouterr().err
    (here / "mine.yaml").write_text(yaml.safe_dump({**node, "plugins": ["prompts_rewards.py"]}))
    assert main([*words, "out=b"]) == 2
    assert "plugins are read from the command line alone" in capsys.readouterr().err
    (here / "mine.yaml").write_text(yaml.safe_dump(node))
    assert main([*words, "plugins=[prompts_rewards.py]", "out=c"]) == 0


@pytest.mark.medium
def test_the_example_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    guide = (Path(__file__).parents[2] / "docs" / "your_own_task.md").read_text()
    command, rows, functions = re.findall(r"```(?:python)?\n(.*?)```", guide, re.DOTALL)[:3]
    (tmp_path / "data.jsonl").write_text(rows)
    (tmp_path / "my_rewards.py").write_text(functions)
    words = [
        word for word in command.replace("\\", "").split()[1:] if not word.startswith(("total_steps=", "policy.c"))
    ]
    assert main([*words, *WORDS[3:8], "iterations=1", "progress=false", "out=run"]) == 0
    scores = json.loads((tmp_path / "run" / "samples.jsonl").read_text().splitlines()[0])["scores"]
    assert list(scores) == ["right", "short"]


@pytest.mark.medium
def test_a_run_is_told_from_another_by_what_its_files_hold(here: Path):
    def hashed(*words: str) -> str:
        return identity(compose([*WORDS, "iterations=1", "env.prompts.rewards=[exact]", *words]))

    first, with_held_out = hashed(), hashed("env.prompts.eval_file=held.jsonl")
    assert first != with_held_out
    (here / "elsewhere").mkdir()
    (here / "elsewhere" / "data.jsonl").write_text(jsonl(*ROWS))
    assert hashed("env.prompts.file=elsewhere/data.jsonl") == first
    (here / "held.jsonl").write_text(jsonl(*OTHERS[::-1]))
    assert hashed() == first
    assert hashed("env.prompts.eval_file=held.jsonl") != with_held_out
    (here / "data.jsonl").write_text(jsonl(*ROWS[::-1]))
    assert hashed() != first
    (here / "rm").mkdir()
    (here / "rm" / "config.json").write_text("{}")
    model = hashed("env.prompts.reward_models.rm=rm")
    (here / "rm" / "config.json").write_text("{ }")
    assert hashed("env.prompts.reward_models.rm=rm") != model


def test_a_reward_model_is_a_reward_among_others(here: Path):
    from transformers import LlamaConfig, LlamaForSequenceClassification

    from rlfw.envs.reward_model import RewardModel
    from rlfw.policies.tokenizer import character_tokenizer

    tokenizer = character_tokenizer("abcr:=xyz")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1}
    keys = {"vocab_size": len(tokenizer), "pad_token_id": 0, "num_labels": 1}
    LlamaForSequenceClassification(LlamaConfig(**sizes, **keys)).save_pretrained(here / "rm")
    tokenizer.save_pretrained(here / "rm")
    env = make(rewards=["short"], reward_models={"liked": "rm"}, weights={"liked": 2.0})
    policy = CausalLM(env.spec, Streams(0), hidden_size=8, num_layers=1, num_heads=1)
    rollout = env.collect(EpisodeGroups(4, 2), policy.actor(Streams(1)))
    pairs = [(sample["prompt"], sample["completion"]) for sample in rollout.samples]
    liked = RewardModel("rm")(*zip(*pairs, strict=True))
    assert rollout.scores["liked"].tolist() == pytest.approx(liked, abs=1e-6)
    expected = [2 * score - len(text) for score, (_, text) in zip(liked, pairs, strict=True)]
    assert rollout.rewards.sum(1).tolist() == pytest.approx(expected, abs=1e-5)
