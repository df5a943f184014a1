"""Wrong input of every kind, each with its one sentence: nothing is trained on it, and no traceback is shown.

A row is the words after ``rlfw``, the exit code and a pattern of what is said: 2 where the input is wrong, 1 where it
shows only once the env or the task runs, 0 where it is taken, and how. The files that a row names are those of FILES.
"""

from __future__ import annotations

import json
import pickle
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.config_store import ConfigStore
from safetensors.torch import save_file

from rlfw import registry
from rlfw.cli import main
from rlfw.config import compose

pytestmark = pytest.mark.medium

Row = tuple[str, int, str]  # words, exit code, pattern

GYM = "train algorithm=ppo env=cartpole sampler.steps.num_envs=2 sampler.steps.num_steps=4 iterations=1"
ODD = "train plugins=[odd_env.py] algorithm=ppo env=gym env.gym.id=Odd-v0 sampler.steps.num_envs=1"
ODD += " sampler.steps.num_steps=4 iterations=1 env.gym.kwargs.kind="
TINY = "policy.causal_lm.hidden_size=8 policy.causal_lm.num_layers=1 policy.causal_lm.num_heads=1"
TEXT = f"train algorithm=grpo env=reverse warmup.steps=0 sampler.episodes.num_episodes=8 iterations=1 {TINY}"
BARE = "train algorithm=grpo env=reverse warmup.steps=0 sampler.episodes.num_episodes=8 iterations=1"
CART = "train algorithm=ppo env=cartpole iterations=1"
TASK = "train plugins=[odd_task.py] algorithm=grpo env=odd policy=causal_lm sampler.episodes.num_episodes=8"
TASK += f" iterations=1 {TINY} env.odd.kind="
QUIET = ["progress=false", "tensorboard=false"]

# ------------------------------------------------------------------------------------------------ the table

COMMAND_LINE: list[Row] = [
    ("Train", 2, r"no such command Train; did you mean train\?"),
    ("--bogus", 2, r"no such command --bogus; there are train, eval"),
    ("train --bogus", 2, r"unrecognized arguments: --bogus; rlfw train --help shows"),
    ("train -x", 2, r"unrecognized arguments: -x"),
    ("train --cfg nothing", 2, r"argument --cfg/-c: invalid choice: 'nothing'"),
    ("train --resolve", 2, r"--resolve flag can only be used in conjunction with --cfg"),
    ("train --config-name zzz", 2, r"Cannot find primary config 'zzz'"),
    ("train --config-dir /nowhere", 2, r"'/nowhere' not found"),
    ("train --experimental-rerun job.pickle", 2, r"--experimental-rerun reads a pickle"),
    ("train --multirun seed=0,", 2, r"an override reads key=value and 'seed=0,' does not"),
    ("train -m baseline=crtic,none", 2, r"baseline=crtic: no such choice; did you mean critic\?"),
    ("train -m resume=a", 2, r"resume=DIR goes on with one run: write it without -m"),
    ("train lr", 2, r"an override reads key=value and 'lr' does not"),
    ("train lr:1", 2, r"'lr:1' does not"),
    ("train lr==", 2, r"'lr==' does not"),
    ("train =1", 2, r"=1: an override reads key=value and this one has no key"),
    ("train lr=[1", 2, r"'lr=\[1' does not; a value with spaces or brackets"),
    ("train lr={a", 2, r"'lr={a' does not"),
    ("train 'lr=\"1'", 2, r"does not; a value with spaces"),
    ("train ~lr", 2, r"~lr: a key cannot be taken away; write key=VALUE"),
    ("train ~baseline", 2, r"~baseline: a key cannot be taken away; .* axis=none"),
    ("train +lr=1", 2, r"lr is there already: write lr=VALUE without the \+"),
    ("train ++lr=x", 2, r"lr: Value 'x' of type 'str'"),
    ("train ++gama=1", 2, r"gama: no such key; did you mean gamma\?"),
    ("train --config-path /nowhere/at/all", 2, r"Cannot find primary config|not found"),
    ("eval", 2, r"arguments are required: dir.*; rlfw eval --help shows"),
    ("eval run --episodes x", 2, r"argument --episodes: invalid int value: 'x'"),
    ("eval run --episodes 0", 2, r"--episodes 0: at least 1"),
    ("eval run --episodes -3", 2, r"--episodes -3: at least 1|argument"),
    ("eval run --bogus", 2, r"unrecognized arguments: --bogus"),
    ("eval run --seed 1.5", 2, r"argument --seed: invalid int value"),
    ("list --bogus", 2, r"unrecognized arguments: --bogus; rlfw list --help"),
    ("list baseline ratio", 2, r"unrecognized arguments: ratio"),
    ("list baselin", 2, r"no such axis: baselin; did you mean baseline\?"),
    ("explain --bogus", 2, r"unrecognized arguments: --bogus; rlfw explain --help"),
    ("explain algorithm=gr", 2, r"algorithm=gr: no such choice; did you mean grpo\?"),
    ("explain regularizer.clip.hi=1", 2, r"regularizer.clip.hi: no such key; did you mean high\?"),
    ("new", 2, r"arguments are required: axis, name"),
    ("new nothing x", 2, r"no such axis: nothing; there are env, policy"),
    ("new regularizer ../evil", 2, r"\.\./evil: a part's name is made of a-z, 0-9 and _"),
    ("new regularizer json", 2, r"json is a module that Python imports"),
    ("check", 2, r"check takes AXIS/NAME, e\.g\. regularizer/clip, or --all"),
    ("check regularizer", 2, r"check takes AXIS/NAME.*; got regularizer"),
    ("check regularizer/nope", 2, r"regularizer=nope: no such part"),
    ("check --bogus", 2, r"--bogus"),
]

KEYS_AND_TYPES: list[Row] = [
    (f"{GYM} lr=null", 2, r"lr: field 'lr' is not Optional"),
    (f"{GYM} lr=true", 2, r"lr: Value 'True' of type 'bool' could not be converted to Float"),
    (f"{GYM} lr=[1]", 2, r"lr: Value '\[1\]' of type 'list'"),
    (f"{GYM} lr={{a:1}}", 2, r"lr: Value .* of type 'dict'"),
    (f"{GYM} lr=0x10", 2, r"lr: Value '0x10' of type 'str'"),
    (f"{GYM} lr=???", 2, r"lr must be given: write lr=VALUE"),
    (f"{GYM} seed=1.5", 2, r"seed: Value '1.5' of type 'float' could not be converted to Integer"),
    (f"{GYM} seed=true", 2, r"seed: Value 'True' of type 'bool'"),
    (f"{GYM} epochs=1e3", 2, r"epochs: Value '1000.0' of type 'float'"),
    (f"{GYM} epochs=null", 2, r"epochs: field 'epochs' is not Optional"),
    (f"{GYM} iterations=1.0", 2, r"iterations: Value '1.0' of type 'float'"),
    (f"{GYM} iterations=null total_steps=1e6", 2, r"total_steps: Value '1000000.0' of type 'float'"),
    (f"{GYM} tensorboard=maybe", 2, r"tensorboard: Value 'maybe'"),
    (f"{GYM} lr=${{nothing}}", 2, r"lr: Interpolation key 'nothing' not found"),
    (f"{GYM} lr=${{lr}}", 2, r"lr: .*[Rr]ecursi"),
    (f"{GYM} lr=${{oc.env:HOME}}", 2, r"lr: .*could not be converted to Float"),
    (f"{GYM} lr=${{nothing:1}}", 2, r"lr: Unsupported interpolation type nothing"),
    (f"{GYM} warmup=3", 2, r"warmup"),
    (f"{GYM} warmup.steps=true", 2, r"warmup.steps: Value 'True'"),
    (f"{GYM} evaluation.evry=1", 2, r"evaluation.evry: no such key; did you mean every\?"),
    (f"{GYM} checkpoint.best=three", 2, r"checkpoint.best: Value 'three'"),
    (f"{GYM} policy.mlp.hidden_sizes=64", 2, r"policy.mlp.hidden_sizes"),
    (f"{GYM} policy.mlp.hidden_sizes=[a]", 2, r"policy.mlp.hidden_sizes.*Value 'a'"),
    (f"{GYM} policy.mlp.hidden_sizes=[0]", 2, r"policy.mlp.hidden_sizes.*at least 1"),
    (f"{GYM} policy.mlp.activation=gelu", 2, r"policy.mlp.activation=gelu: choose one of tanh"),
    (f"{GYM} baseline.critic=3", 2, r"baseline.critic=3: its keys read baseline.critic.KEY=VALUE"),
    (f"{GYM} baseline.critic.clip.x=3", 2, r"baseline.critic.clip"),
    (f"{GYM} baseline.critic.bootstrap_truncated=perhaps", 2, r"bootstrap_truncated: Value 'perhaps'"),
    (f"{GYM} env.gym.id=3", 2, r"env.gym.id=3: gymnasium knows no such env"),
    (f"{GYM} env.gym.id=null", 2, r"env.gym.id"),
    (f"{GYM} +env.gym.idd=x", 2, r"env.gym.idd: no such key; did you mean id\?"),
    (f"{GYM} env.gym.kwargs=3", 2, r"env.gym.kwargs"),
    (f"{GYM} optimizer.adam.beta=1", 2, r"optimizer.adam.beta: no such key; did you mean beta[12]\?"),
    (f"{GYM} controller=[anneal] controller.anneal.shape=square", 2, r"controller.anneal.shape=square: choose one of"),
]

PARTS: list[Row] = [
    (f"{GYM} algorithm=", 2, r"algorithm=: no such choice"),
    (f"{GYM} env=", 2, r"env=: no such choice"),
    (f"{GYM} algorithm=null", 2, r"algorithm=null: name a part"),
    (f"{GYM} algorithm=[ppo,grpo]", 2, r"algorithm takes one name, got ppo, grpo"),
    (f"{GYM} env=[cartpole,acrobot]", 2, r"env takes one part, got cartpole, acrobot"),
    (f"{GYM} policy=none", 2, r"policy=none: no such choice"),
    (f"{GYM} sampler=none", 2, r"sampler=none: no such choice; there are steps, episodes"),
    (f"{GYM} optimizer=adamw", 2, r"optimizer=adamw: no such choice; did you mean adam\?"),
    (f"{GYM} aggregation=mean", 2, r"aggregation=mean: no such choice; did you mean token_mean\?"),
    (f"{GYM} ratio=seq", 2, r"ratio=seq: no such choice; did you mean sequence\?"),
    (f"{GYM} weight=[tis,tis]", 2, r"weight=\[tis,tis\] names tis twice"),
    (f"{GYM} reward=[none,kl]", 2, r"reward=\[none,kl\]: none stands alone"),
    (f"{GYM} regularizer=[clip,dual_clip]", 2, r"both replace the objective; choose one"),
    (f"{GYM} regularizer=gmpo ratio=sequence", 2, r"regularizer=gmpo takes the ratio of each step.*set ratio=token"),
    (f"{GYM} aggregation=prompt_mean", 2, r"aggregation=prompt_mean compares samples within a group"),
    (f"{GYM} normalize=group_std", 2, r"normalize=group_std compares samples within a group: set sampler=episodes"),
    (f"{GYM} baseline=greedy", 2, r"baseline=greedy.*set sampler=episodes"),
    (f"{GYM} reward=[weighted]", 2, r"reward.weighted.weights is empty: write reward.weighted.weights="),
    (f"{GYM} reward=[weighted] reward.weighted.weights.a=1", 2, r"has no reward function a; it scores nothing"),
    (f"{GYM} reward=[clip,weighted] reward.weighted.weights.a=1", 2, r"replaces the rewards.*list it first"),
    (f"{GYM} controller=[ref_sync]", 2, r"controller.ref_sync moves the reference, and no part reads one"),
    (f"{GYM} controller=[critic_warmup]", 2, r"controller.critic_warmup.iterations must be given"),
    (
        f"{GYM} controller=[adaptive_kl] controller.adaptive_kl.target=1",
        2,
        r"adaptive_kl\.knob=reward\.kl\.coef",
    ),
    (f"{GYM} controller=[anneal] controller.anneal.knob=lrr", 2, r"controller.anneal.knob=lrr: no such knob"),
    (f"{GYM} baseline=critic baseline.critic.network=shared", 2, r"network=shared: choose one of own, head"),
    (f"{CART} sampler=episodes sampler.episodes.no_signal=drop", 2, r"no_signal=drop compares the rows of a group"),
    (f"{GYM} regularizer=[kl] regularizer.kl.estimator=k9", 2, r"regularizer.kl.estimator=k9: choose one of k1"),
    (f"{GYM} env.gym.vectorization=async", 2, r"env.gym.vectorization=async: choose one of auto, loop"),
    (f"{GYM} policy=cnn", 2, r"policy=cnn"),
    (f"{GYM} checkpoint.best=true", 2, r"checkpoint.best=true goes by the evaluations and there are none"),
    (f"{GYM} evaluation.episodes=3", 2, r"evaluation.episodes has no effect with evaluation.every=0"),
    (f"{GYM} dump=5", 2, r"dump=5 has no effect: the last iteration is iterations=1"),
]

EXPERIMENTS: list[Row] = [
    ("train experiment=../../x", 2, r"experiment=\.\./\.\./x: no such file"),
    ("train experiment=", 2, r"experiment=: no such file"),
    ("train experiment=[a,b]", 2, r"experiment takes one name, got a, b"),
    ("train experiment=list.yaml", 2, r"list.yaml holds no keys: an experiment reads key: value"),
    ("train experiment=number.yaml", 2, r"number.yaml holds no keys"),
    ("train experiment=tabs.yaml", 2, r"tabs.yaml is no YAML"),
    ("train experiment=python.yaml", 2, r"python.yaml is no YAML: could not determine a constructor"),
    ("train experiment=latin.yaml", 2, r"latin.yaml is no YAML: 'utf-8' codec"),
    ("train experiment=typo.yaml", 2, r"learning_rate: no such key"),
    ("train experiment=null_axis.yaml", 2, r"baseline: parts are chosen under defaults"),
    ("train experiment=null.yaml", 2, r"experiment=null.yaml: the name of an experiment .*rename the file"),
    ("train experiment=5.yaml", 2, r"experiment=5.yaml: the name of an experiment .*rename the file"),
    ("train experiment=defaults_word.yaml", 2, r"defaults_word.yaml: defaults is a list"),
    ("train experiment=unknown_group.yaml", 2, r"nothing|nonsense"),
    ("train experiment=self_loop.yaml", 2, r"self_loop.yaml: an experiment chooses no other experiment"),
    ("train experiment=resumes.yaml", 2, r"resume=DIR goes on with one run"),
    ("train experiment=not_a_number.yaml", 2, r"gamma=nan: it must be a number"),
]

SECURITY: list[Row] = [
    (f"{GYM} experiment=module_id.yaml", 2, r"env.gym.id=evil_module:Env-v0 imports the module evil_module, .* write"),
    (f"{GYM} experiment=target.yaml", 2, r"target.yaml: _target_: no such key; parts are chosen by name"),
    (f"{GYM} experiment=target_deep.yaml", 2, r"target_deep.yaml: _target_: no such key"),
    (f"{GYM} +env.gym.kwargs._target_=os.system", 2, r"_target_: no such key"),
    (f"{GYM} +regularizer.clip._target_=os.system", 2, r"_target_: no such key"),
    (f"{GYM} +_target_=os.system", 2, r"_target_: no such key"),
    (f"train -m {GYM[6:]} experiment=callbacks.yaml", 2, r"callbacks.yaml: hydra: Hydra's own settings are taken from"),
    (f"{GYM} experiment=logging.yaml", 2, r"logging.yaml: hydra/job_logging: Hydra's own settings"),
    (f"{GYM} experiment=launcher.yaml", 2, r"launcher.yaml: override /hydra/launcher: Hydra's own settings"),
    (f"{GYM} experiment=into_hydra.yaml", 2, r"into_hydra.yaml: /regularizer@hydra.callbacks.x: Hydra's own settings"),
    (
        f"{GYM} experiment=plugins.yaml",
        2,
        r"plugins are read from the command line alone: write plugins=",
    ),
    (f"{GYM} env.gym.id=evil_module:Env-v0", 2, r"env.gym.id=evil_module:Env-v0 cannot be made: .*EVIL RAN"),
    (f"{GYM} env.gym.id=no_such_module:Env-v0", 2, r"env.gym.id=no_such_module:Env-v0.*No module named"),
    (
        f"{BARE} policy.causal_lm.path=remote_code",
        2,
        r"policy.causal_lm.path=remote_code: its model is code of its own",
    ),
    (f"{BARE} policy.causal_lm.path=pickled", 2, r"policy.causal_lm.path=pickled has pickled weights alone"),
    (f"{BARE} policy.causal_lm.path=someone/model", 2, r"no such folder; models are read from disk, never downloaded"),
    ("train \x1b[31mred=1", 2, r"\\x1b\[31m"),
    ("train experiment=\x1b]0;title", 2, r"\\x1b\]0;title|does not"),
]

PLUGINS: list[Row] = [
    (f"{GYM} plugins=[no.py]", 2, r"plugins: there is no file no.py"),
    (f"{GYM} plugins=no.py", 2, r"plugins=no.py: it takes a list, plugins=\[FILE\]"),
    (f"{GYM} plugins=[.]", 2, r"plugins: there is no file \."),
    (f"{GYM} plugins=[text.txt]", 2, r"plugins: text.txt is no Python file: its name ends in .py"),
    (f"{GYM} plugins=[latin.py]", 2, r"plugin latin.py"),
    (f"{GYM} plugins=[exits.py]", 2, r"the plugin exits.py fails to import \(.*exits.py, line 1\): SystemExit"),
    (f"{GYM} plugins=[clash.py]", 2, r"regularizer=clip is registered twice"),
    (f"{GYM} plugins=[3]", 2, r"plugins"),
]

ENVS: list[Row] = [
    (f"{GYM} env.gym.id=CartPole-v9", 2, r"env.gym.id=CartPole-v9: gymnasium knows no such env; did you mean CartPole"),
    (f"{GYM} env.gym.id=''", 2, r"env.gym.id=: gymnasium knows no such env|cannot be made"),
    (f"{GYM} 'env.gym.id=a b'", 2, r"env.gym.id=a b.*(cannot be made|knows no such env)"),
    (f"{GYM} env.gym.id=../x", 2, r"env.gym.id=\.\./x.*(cannot be made|knows no such env)"),
    (f"{GYM} env.gym.kwargs.nothing=1", 2, r"env.gym.kwargs=.*cannot be made: .*nothing"),
    (f"{GYM} env.gym.kwargs.disable_env_checker=1", 2, r"cannot be made"),
    (f"{GYM} env.gym.max_episode_steps=0", 2, r"env.gym.max_episode_steps=0: it must be at least 1"),
    (f"{GYM} env=frozen_lake env.gym.normalize_observations=true", 2, r"has no real-valued observations to normalise"),
    (f"{ODD}text_space", 2, r"env.gym.id=Odd-v0: observations in Text.* are not supported; Box"),
    (f"{ODD}sequence_space", 2, r"observations in Sequence.* are not supported"),
    (f"{ODD}nested_image", 2, r"entry 'x' is an image; images inside a Dict or Tuple are not supported"),
    (f"{ODD}nested_text", 2, r"env.gym.id=Odd-v0: entry 'x': observations in Text.* are not supported"),
    (f"{ODD}integer_actions", 2, r"actions in Box.*int.* are not supported; Discrete"),
    (f"{ODD}dict_actions", 2, r"actions in Dict.* are not supported"),
    (f"{ODD}no_spaces", 2, r"env.gym.id=Odd-v0: its observation_space is no space of gymnasium"),
    (f"{ODD}init_raises", 2, r"env.gym.id=Odd-v0 with env.gym.kwargs=.* cannot be made: .*no simulator"),
    (f"{ODD}reset_raises", 1, r"Odd-v0: the reset of sub-env 0 raises ValueError\('no reset'\)"),
    (f"{ODD}reset_nan", 1, r"Odd-v0: step 0 .*gives an observation of nan; it must be finite"),
    (f"{ODD}reset_shape", 1, r"the observation has shape \(3,\), its space says \(2,\)"),
    (f"{ODD}reset_none", 1, r"Odd-v0: the reset of sub-env 0 raises"),
    (f"{ODD}reset_old_api", 1, r"Odd-v0: the reset of sub-env 0 raises"),
    (f"{ODD}step_old_api", 1, r"Odd-v0: step 1 of sub-env 0 raises"),
    (f"{ODD}step_raises", 1, r"Odd-v0: step 1 of sub-env 0 raises ValueError\('no step'\)"),
    (f"{ODD}step_exits", 1, r"Odd-v0: step 1 of sub-env 0 raises SystemExit"),
    (f"{ODD}reward_none", 1, r"Odd-v0: step 1 of sub-env 0 (raises|gives)|a reward of nan"),
    (f"{ODD}reward_nan", 1, r"Odd-v0: step 1 .*gives a reward of nan; it must be finite"),
    (f"{ODD}reward_text", 1, r"Odd-v0: step 1 of sub-env 0 raises ValueError"),
    (f"{ODD}reward_array", 1, r"Odd-v0: step 1 of sub-env 0 raises"),
]

TASKS: list[Row] = [
    (f"train algorithm=grpo env=reverse iterations=1 {TINY} sampler=steps", 2, r"set sampler=episodes"),
    (f"train algorithm=grpo env=tasks policy=causal_lm iterations=1 {TINY}", 2, r"env.tasks.names must be given"),
    (f"{TEXT} env.tasks.names=[]", 2, r"env.tasks.names is empty: choose of copy, reverse"),
    (f"{TEXT} env.tasks.names=[revers]", 2, r"there is no task revers; did you mean reverse\?"),
    (f"{TEXT} env.tasks.alphabet=a", 2, r"env.tasks.alphabet=a: two or more characters"),
    (f"{TEXT} env.tasks.max_length=1", 2, r"env.tasks.max_length=1: it must be at least 3"),
    (f"{TEXT} env.tasks.max_operand=5", 2, r"env.tasks.max_operand=5 has no effect on names=\[reverse\]"),
    (f"{TEXT} env.tasks.max_new_tokens=0", 2, r"max_new_tokens=0: it must be at least 1"),
    (f"{TEXT} env.gym.id=CartPole-v1", 2, r"env.gym.id has no effect: env=gym is not chosen"),
    (f"{TASK}no_prompts", 2, r"env=odd has no prompts"),
    (f"{TASK}number_prompt", 2, r"env=odd: a prompt is 3; prompts are strings"),
    (f"{TASK}empty_prompt", 2, r"the prompt '' has no tokens"),
    (f"{TASK}answers_short", 2, r"env=odd: 1 answers for 2 prompts"),
    (f"{TASK}column_short", 2, r"env=odd: 1 level for 2 prompts"),
    (f"{TASK}column_name", 2, r"env=odd: a column cannot be called prompts"),
    (f"{TASK}no_rewards", 2, r"env=odd has no reward function"),
    (f"{TASK}reward_text", 2, r"the reward function .* is 'exact', which cannot be called"),
    (f"{TASK}reward_asks", 2, r"the reward function judge asks for images; there are prompts, completions"),
    (f"{TASK}reward_twice", 2, r"two reward functions share a name"),
    (f"{TASK}reward_named_score", 2, r"a reward function cannot be called score"),
    (f"{TASK}weight_unknown", 2, r"a weight for the reward function jugde; did you mean judge\?"),
    (f"{TASK}weight_text", 2, r"the weight of the reward function judge is 'much', no finite number"),
    (f"{TASK}task_raises", 2, r"env=odd cannot be made \(.*odd_task.py, line \d+\): RuntimeError: no data"),
    (f"{TASK}returns_dict", 1, r"the reward function judge returned dict"),
    (f"{TASK}returns_number", 1, r"the reward function judge returned float 1.0; it must return a list of 8"),
    (f"{TASK}returns_inf", 1, r"judge gave inf for the completion .* a reward must be finite"),
    (f"{TASK}returns_complex", 1, r"judge gave \(?1j\)? for .*it must be a number or None"),
    (f"{TASK}returns_nothing", 1, r"no reward function gave a number for any of 8 completions"),
    (f"{TASK}reward_exits", 1, r"the reward function judge raised SystemExit"),
    (f"{TASK}draws_other_characters", 2, r"the prompt .* has the character .*, which the task's alphabet lacks"),
]

MODELS: list[Row] = [
    (f"{TEXT} policy.causal_lm.hidden_size=0", 2, r"policy.causal_lm.hidden_size=0: it must be at least 1"),
    (f"{TEXT} policy.causal_lm.num_heads=3", 2, r"hidden_size=8 is not a multiple of policy.causal_lm.num_heads=3"),
    (
        f"{TEXT} policy.causal_lm.architecture=lama",
        2,
        r"architecture=lama: transformers has no such causal LM",
    ),
    (f"{TEXT} policy.causal_lm.architecture=mamba", 2, r"mamba"),
    (f"{TEXT} policy.causal_lm.config.nothing=1", 2, r"policy.causal_lm.config.nothing: LlamaConfig has no such key"),
    (f"{TEXT} policy.causal_lm.config.vocab_size=9", 2, r"config.vocab_size follows from the task's alphabet"),
    (f"{TEXT} policy.causal_lm.config.hidden_size=9", 2, r"write policy.causal_lm.hidden_size"),
    (f"{TEXT} policy.causal_lm.config.hidden_act=nothing", 2, r"transformers cannot build this llama"),
    (f"{TEXT} policy.causal_lm.config.max_position_embeddings=4", 2, r"more than the model's context of 4"),
    (f"{TEXT} policy.causal_lm.temperature=0", 2, r"policy.causal_lm.temperature=0"),
    (f"{TEXT} policy.causal_lm.top_k=0", 2, r"policy.causal_lm.top_k=0"),
    (f"{TEXT} policy.causal_lm.top_p=0", 2, r"policy.causal_lm.top_p=0"),
    (f"{TEXT} policy.causal_lm.top_p=1.5", 2, r"policy.causal_lm.top_p=1.5"),
    (f"{BARE} policy.causal_lm.path=/nowhere", 2, r"policy.causal_lm.path=/nowhere: there is no such folder"),
    (f"{BARE} policy.causal_lm.path=empty_folder", 2, r"path=empty_folder has no config.json"),
    (f"{TEXT} policy.causal_lm.path=empty_folder", 2, r"hidden_size has no effect with policy.causal_lm.path="),
    (f"{BARE} policy.causal_lm.path=text.txt", 2, r"policy.causal_lm.path=text.txt: there is no such folder"),
]

NUMBERS: list[Row] = [
    (f"{GYM} seed=-1", 2, r"seed=-1: it must be at least 0"),
    (f"{GYM} seed=99999999999999999999999999", 0, r""),
    (f"{GYM} lr=nan", 2, r"lr=nan: it must be a number"),
    (f"{GYM} lr=inf", 2, r"lr=inf: it must be finite"),
    (f"{GYM} lr=1e400", 2, r"lr=inf: it must be finite"),
    (f"{GYM} lr=1e-400", 0, r""),
    (f"{GYM} lr=0", 0, r""),
    (f"{GYM} gamma=nan", 2, r"gamma=nan: it must be a number"),
    (f"{GYM} gamma=1.1", 2, r"gamma=1.1: it must lie in \[0, 1\]"),
    (f"{GYM} epochs=0", 2, r"epochs=0: it must be at least 1"),
    (f"{GYM} num_minibatches=0", 2, r"num_minibatches=0: it must be at least 1"),
    (f"{GYM} num_minibatches=1000", 0, r""),
    (f"{GYM} micro_batch_rows=0", 2, r"micro_batch_rows=0: it must be at least 1"),
    (f"{GYM} max_grad_norm=0", 2, r"max_grad_norm=0.0: it must be greater than 0"),
    (f"{GYM} max_grad_norm=nan", 2, r"max_grad_norm=nan: it must be a number"),
    (f"{GYM} max_grad_norm=inf", 0, r""),
    (f"{GYM} iterations=0", 2, r"iterations=0: it must be at least 1"),
    (f"{GYM} iterations=null total_steps=null", 2, r"there is no budget: give total_steps=N or iterations=N"),
    (f"{GYM} iterations=null total_steps=0", 2, r"total_steps=0: it must be at least 1"),
    (f"{GYM} threads=0", 2, r"threads=0: it must be at least 1"),
    (f"{GYM} threads=100000", 2, r"threads=100000: it must be at most 1024"),
    (f"{GYM} dump=0", 2, r"dump=0: it must be at least 1"),
    (f"{GYM} update=jit", 2, r"update=jit: choose one of eager, compile"),
    (f"{GYM} sampler.steps.num_envs=0", 2, r"sampler.steps.num_envs=0: it must be at least 1"),
    (f"{GYM} sampler.steps.num_envs=1 sampler.steps.num_steps=1", 0, r""),
    (f"{GYM} baseline.critic.gae_lambda=nan", 2, r"baseline.critic.gae_lambda=nan: it must be a number"),
    (f"{GYM} baseline.critic.clip=0", 2, r"baseline.critic.clip=0.0: it must be greater than 0"),
    (f"{GYM} baseline.critic.lr=inf", 2, r"baseline.critic.lr=inf: it must be finite"),
    (f"{GYM} regularizer.clip.low=2", 2, r"regularizer.clip.low=2.0: it must lie in \[0, 1\]"),
    (f"{GYM} regularizer.clip.high=nan", 2, r"regularizer.clip.high=nan: it must be a number"),
    (f"{GYM} regularizer=[kl] regularizer.kl.coef=inf", 2, r"regularizer.kl.coef=inf: it must be finite"),
    (f"{GYM} regularizer=[entropy] regularizer.entropy.coef=nan", 2, r"regularizer.entropy.coef=nan"),
    (f"{GYM} reward=[clip] reward.clip.limit=0", 2, r"reward.clip.limit=0.0: it must be greater than 0"),
    (f"{GYM} normalize.whiten.ddof=2", 2, r"normalize.whiten.ddof=2: choose one of 0, 1"),
    (f"{GYM} normalize.whiten.eps=-1", 2, r"normalize.whiten.eps=-1.0: it must be at least 0"),
    (f"{GYM} optimizer.adam.eps=0", 2, r"optimizer.adam.eps=0.0: it must be greater than 0"),
    (f"{GYM} warmup.steps=-1", 2, r"warmup.steps=-1: it must be at least 0"),
    (f"{GYM} warmup.steps=1 warmup.lr=inf", 2, r"warmup.lr=inf: it must be finite"),
    (f"{GYM} evaluation.every=-1", 2, r"evaluation.every=-1: it must be at least 0"),
    (f"{GYM} checkpoint.keep=-2", 2, r"checkpoint.keep=-2: it must be at least 1"),
]

FOLDERS: list[Row] = [
    (f"{GYM} out=", 2, r"out= names no folder: leave it away for a fresh one"),
    (f"{GYM} out=text.txt", 2, r"out=text.txt is not empty: name another folder"),
    (f"{GYM} out=text.txt/run", 2, r"out=text.txt/run: cannot write there: Not a directory"),
    (f"{GYM} out=/proc/run", 2, r"out=/proc/run: cannot write there"),
    (f"{GYM} out={'x' * 300}", 2, r"cannot write there: File name too long"),
    (f"""{GYM} 'out="a b/ü, $(c); *"'""", 0, r""),
    (f"{GYM} progress=true out=text.txt", 2, r"out=text.txt is not empty"),
    ("eval nowhere", 2, r"nowhere is not a run's folder: it has no config.yaml"),
    ("eval text.txt", 2, r"text.txt is not a run's folder"),
    ("train resume=nowhere", 2, r"nowhere is not a run's folder"),
    ("train resume=", 2, r"is not a run's folder|resume"),
    ("train resume=[a,b]", 2, r"is not a run's folder"),
    (f"{GYM} resume=null", 0, r""),
]

TABLE = {
    "command line": COMMAND_LINE,
    "keys and types": KEYS_AND_TYPES,
    "parts and compositions": PARTS,
    "experiment files": EXPERIMENTS,
    "strangers' files": SECURITY,
    "plugins": PLUGINS,
    "environments and spaces": ENVS,
    "text tasks and rewards": TASKS,
    "models and tokenizers": MODELS,
    "limits of numbers": NUMBERS,
    "files and folders": FOLDERS,
}

# ------------------------------------------------------------------------------------------------ the files

ODD_ENV = """
import gymnasium, numpy as np
from gymnasium import spaces

class Odd(gymnasium.Env):
    def __init__(self, kind):
        self.kind = kind
        if kind == "init_raises":
            raise RuntimeError("no simulator")
        text, image = spaces.Text(4), spaces.Box(0, 255, (8, 8, 3), np.uint8)
        if kind != "no_spaces":
            self.observation_space = {
                "text_space": text, "sequence_space": spaces.Sequence(spaces.Discrete(2)),
                "nested_image": spaces.Dict({"x": image}), "nested_text": spaces.Dict({"x": text}),
            }.get(kind, spaces.Box(-1, 1, (2,)))
            self.action_space = {
                "integer_actions": spaces.Box(0, 3, (2,), np.int64),
                "dict_actions": spaces.Dict({"x": spaces.Discrete(2)}),
            }.get(kind, spaces.Discrete(2))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.kind == "reset_raises":
            raise ValueError("no reset")
        found = {"reset_nan": np.full(2, np.nan), "reset_shape": np.zeros(3), "reset_none": None}
        observation = found.get(self.kind, np.zeros(2))
        return observation if self.kind == "reset_old_api" else (observation, {})

    def step(self, action):
        if self.kind == "step_raises":
            raise ValueError("no step")
        if self.kind == "step_exits":
            raise SystemExit(3)
        if self.kind == "step_old_api":
            return np.zeros(2), 1.0, False, {}
        rewards = {"reward_none": None, "reward_nan": np.nan, "reward_text": "good", "reward_array": np.ones(2)}
        return np.zeros(2), rewards.get(self.kind, 1.0), False, False, {}

gymnasium.register("Odd-v0", Odd, max_episode_steps=3)
"""

ODD_TASK = '''
from rlfw import register
from rlfw.envs.text import Example, TextEnv, TextTask

def judge(completions):
    n = len(completions)
    if KIND == "reward_exits":
        raise SystemExit(3)
    return {
        "returns_dict": {}, "returns_number": 1.0, "returns_inf": [float("inf")] * n, "returns_complex": [1j] * n,
        "returns_nothing": [None] * n,
    }.get(KIND, [1.0] * n)

class Drawn(TextTask):
    def draw(self, rng):
        return Example("ab" if rng.random() < 0 else "xyz")

@register("env", "odd")
def odd(streams, *, kind: str) -> TextEnv:
    """A task with one thing wrong."""
    global KIND
    KIND = kind
    if kind == "task_raises":
        raise RuntimeError("no data")
    changes = {
        "no_prompts": {"prompts": []}, "number_prompt": {"prompts": ["ab", 3]}, "empty_prompt": {"prompts": ["", "b"]},
        "answers_short": {"answers": ["a"]}, "column_short": {"columns": {"level": [1]}},
        "column_name": {"columns": {"prompts": [1, 2]}}, "no_rewards": {"rewards": []},
        "reward_text": {"rewards": ["exact"]}, "reward_asks": {"rewards": {"judge": lambda images: [1.0]}},
        "reward_twice": {"rewards": [judge, judge]}, "reward_named_score": {"rewards": {"score": judge}},
        "weight_unknown": {"weights": {"jugde": 1.0}}, "weight_text": {"weights": {"judge": "much"}},
    }.get(kind, {})
    if kind == "draws_other_characters":
        return TextEnv(streams, Drawn(rewards=judge, max_new_tokens=4, alphabet="ab", max_prompt_chars=3), name="odd")
    given = {"prompts": ["ab", "ba"], "rewards": judge, "max_new_tokens": 4, **changes}
    return TextEnv(streams, TextTask(**given), name="odd")
'''

FILES: dict[str, str | bytes] = {
    "odd_env.py": ODD_ENV,
    "odd_task.py": ODD_TASK,
    "text.txt": "precious\n",
    "exits.py": "raise SystemExit(3)\n",
    "latin.py": "# \xfc\n".encode("latin-1"),
    "clash.py": "from rlfw import registry\nregistry.register('regularizer', 'clip')(registry.entry('regularizer', "
    "'clip').part)\n",
    "list.yaml": "- lr\n",
    "number.yaml": "3\n",
    "tabs.yaml": "lr:\n\t- 1\n",
    "python.yaml": "lr: !!python/object/apply:os.system [echo]\n",
    "latin.yaml": "# \xfc\nlr: 1\n".encode("latin-1"),
    "typo.yaml": "learning_rate: 1\n",
    "null_axis.yaml": "baseline:\n",
    "null.yaml": "lr: 1\n",
    "5.yaml": "lr: 1\n",
    "defaults_word.yaml": "defaults: grpo\n",
    "unknown_group.yaml": "defaults:\n  - override /nothing: nonsense\n",
    "self_loop.yaml": "defaults:\n  - /experiment: self_loop\n",
    "resumes.yaml": "resume: somewhere\n",
    "not_a_number.yaml": "gamma: .nan\n",
    "module_id.yaml": "env: {gym: {id: 'evil_module:Env-v0'}}\n",
    "target.yaml": "_target_: os.system\n",
    "target_deep.yaml": "env: {gym: {kwargs: {a: [{_target_: os.system}]}}}\n",
    "callbacks.yaml": "hydra: {searchpath: [/tmp]}\n",
    "logging.yaml": "defaults:\n  - hydra/job_logging: x\n",
    "launcher.yaml": "defaults:\n  - override /hydra/launcher: x\n",
    "into_hydra.yaml": "defaults:\n  - /regularizer@hydra.callbacks.x: clip\n",
    "plugins.yaml": "plugins: [evil_module.py]\n",
    "evil_module.py": "raise RuntimeError('EVIL RAN')\n",
    "remote_code/config.json": json.dumps(
        {"model_type": "evil", "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}}
    ),
    "remote_code/model.safetensors": "",
    "remote_code/code.py": "open('ran', 'w').write('x')\nraise RuntimeError('EVIL RAN')\n",
    "pickled/config.json": json.dumps({"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 9}),
    "pickled/pytorch_model.bin": pickle.dumps({}),
    "empty_folder/x": "",
}


def branches(repo: dict[str, Any]) -> dict[str, Any]:
    """The tree of Hydra's store, its leaves shared: those are never changed."""
    return {name: branches(node) if isinstance(node, dict) else node for name, node in repo.items()}


@pytest.fixture(scope="module", autouse=True)
def hydra() -> None:
    """Hydra's own configuration is in the store from here on."""
    compose([])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in; what a test registers is gone after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_PARTS", {axis: dict(found) for axis, found in registry._PARTS.items()})
    monkeypatch.setattr(registry, "_loaded", dict(registry._loaded))
    monkeypatch.setattr(ConfigStore.instance(), "repo", branches(ConfigStore.instance().repo))
    return tmp_path


def words_of(row: str, folder: Path) -> list[str]:
    """The words of a row, the files that they name written."""
    words = shlex.split(row)
    for name, content in FILES.items():
        if name.split("/")[0].removesuffix(".py") in row:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    if words and words[0] == "train":
        quiet = [word for word in QUIET if word.split("=")[0] not in row]
        words += [] if (len(words) > 1 and words[1] in ("--cfg", "--resolve")) or "resume=" in row else quiet
    return words


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code, and what stands on stderr beside notes and what a run that is done says."""
    capsys.readouterr()
    code = main(words)
    lines = capsys.readouterr().err.splitlines(keepends=True)
    return code, "".join(line for line in lines if not line.startswith(("rlfw: note:", "rlfw: done", "rlfw: next:")))


@pytest.mark.parametrize(
    ("row", "code", "pattern"),
    [pytest.param(*row, id=f"{subject}: {row[0][-60:]}") for subject, rows in TABLE.items() for row in rows],
)
def test_wrong_input_is_one_sentence(
    row: str, code: int, pattern: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, err = said(words_of(row, folder), capsys)
    assert found == code, err
    assert re.search(pattern, err), err
    assert "Traceback" not in err
    assert "\x1b" not in err
    assert len(err.strip().splitlines()) == (0 if code == 0 else 1), err
    assert "this is a fault" not in err
    if code == 2:
        assert not any(path.read_text() for path in folder.rglob("metrics.jsonl")), "something was trained"
    assert not (folder / "ran").exists()


def test_the_table_is_large_and_says_nothing_twice() -> None:
    rows = [row[0] for rows in TABLE.values() for row in rows]
    assert len(rows) == len(set(rows))
    assert len(rows) >= 250


# ------------------------------------------------------------------------------------------------ --debug


@pytest.mark.parametrize("words", [["--debug", "train", "lr=x"], ["train", "--debug", "lr=x"]])
def test_debug_shows_the_traceback(words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = said(words, capsys)
    assert code == 2
    assert err.startswith("Traceback (most recent call last)")
    assert err.splitlines()[-1].startswith("rlfw: lr: Value 'x'")


def test_debug_shows_the_traceback_of_a_run_that_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = said([*words_of(f"{ODD}step_raises", folder), "--debug"], capsys)
    assert code == 1
    assert 'raise ValueError("no step")' in err
    assert err.splitlines()[-1].startswith("rlfw: the run failed: Odd-v0: step 1")


PLUGIN_WITH_A_BUG = '''
from dataclasses import dataclass
from rlfw import register
from rlfw.interfaces import Normalize

@register("normalize", "broken")
@dataclass
class Broken(Normalize):
    """Fails when it is called."""

    scope = "rollout"

    def __call__(self, advantages, batch):
        raise KeyError("first\\nsecond")
'''


def test_an_unexpected_error_is_one_line_that_asks_for_debug(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "broken.py").write_text(PLUGIN_WITH_A_BUG)
    words = [*GYM.split(), *QUIET, "plugins=[broken.py]", "normalize=broken"]
    code, err = said(words, capsys)
    assert code == 1
    assert len(err.splitlines()) == 1
    line = PLUGIN_WITH_A_BUG.splitlines().index('        raise KeyError("first\\nsecond")') + 1
    assert err.startswith(f"rlfw: broken.py, line {line}: KeyError: ")
    assert "rlfw check normalize/broken plugins=[broken.py]" in err
    assert err.endswith("; run it again with --debug for the traceback\n")
    code, err = said([*words, "--debug"], capsys)
    assert code == 1
    assert 'raise KeyError("first\\nsecond")' in err


def test_a_multirun_goes_on_after_an_unexpected_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "broken.py").write_text(PLUGIN_WITH_A_BUG)
    words = ["train", "-m", *GYM.split()[1:], *QUIET, "plugins=[broken.py]", "normalize=broken,none"]
    code, err = said(words, capsys)
    assert code == 1
    assert len(err.splitlines()) == 1
    assert re.search(r"normalize=broken: broken.py, line \d+: KeyError", err)
    assert len(list(folder.rglob("metrics.jsonl"))) == 2


@pytest.mark.parametrize(
    ("words", "code", "pattern"),
    [
        (["train", "baseline=crtic"], 2, r"^rlfw: baseline=crtic: no such choice; did you mean critic\?$"),
        (["train", "--bogus"], 2, r"^rlfw: unrecognized arguments: --bogus"),
        (["eval"], 2, r"^rlfw: the following arguments are required"),
        (["--debug", "train", "lr=x"], 2, r"^Traceback"),
    ],
)
def test_the_same_in_a_process_of_its_own(words: list[str], code: int, pattern: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rlfw.cli", *words], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == code
    assert re.search(pattern, done.stderr.strip(), re.MULTILINE), done.stderr
    assert ("Traceback" in done.stderr) == ("--debug" in words)


# ------------------------------------------------------------------------------------------------ runs of strangers


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one iteration, with the checkpoints of its start and its end."""
    out = tmp_path_factory.mktemp("stranger") / "run"
    assert main([*GYM.split(), *QUIET, f"out={out}"]) == 0
    return out


@pytest.fixture
def stranger(original: Path, folder: Path) -> Path:
    """A copy of it that may be changed."""
    return Path(shutil.copytree(original, folder / "run"))


def change(run: Path, key: str, value: object) -> None:
    """Set ``key`` in its config.yaml; ... takes it away."""
    saved = yaml.safe_load((run / "config.yaml").read_text())
    *path, last = key.split(".")
    node = saved
    for name in path:
        node = node[name]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    (run / "config.yaml").write_text(yaml.safe_dump(saved, allow_unicode=True))


@pytest.mark.parametrize("command", [["eval", "run"], ["train", "resume=run", "iterations=2"]], ids=["eval", "resume"])
@pytest.mark.parametrize(
    ("key", "value", "pattern"),
    [
        ("env.gym.id", "evil_module:Env-v0", r"env.gym.id=evil_module:Env-v0 imports the module evil_module, which a"),
        ("env.gym.kwargs", {"a": {"_target_": "os.system"}}, r"_target_: no such key"),
        ("policy.mlp.hidden_sizes", "many", r"config.yaml: .*hidden_sizes"),
        ("policy.mlp.part", "mpl", r"policy=mpl: no such part; did you mean mlp\?"),
        ("baseline", {}, r"config.yaml: baseline takes one part, got none"),
        ("lr", "fast", r"config.yaml: lr: Value 'fast'"),
        ("lr", ..., r"is not the configuration of a run of this version: lr is unknown or missing"),
        ("nonsense", 1, r"is not the configuration of a run of this version: nonsense is unknown or missing"),
        (
            "plugins",
            ["../../evil_module.py"],
            r"parts of its own: add plugins=\[run/plugins/evil_module.py\]",
        ),
    ],
)
def test_a_configuration_of_a_stranger(
    command: list[str], key: str, value: object, pattern: str, stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (stranger.parent / "evil_module.py").write_text("raise RuntimeError('EVIL RAN')\n")
    change(stranger, key, value)
    code, err = said(command, capsys)
    assert code == 2, err
    assert re.search(pattern, err), err
    assert len(err.strip().splitlines()) == 1
    assert "EVIL RAN" not in err


@pytest.mark.parametrize("command", [["eval", "run"], ["train", "resume=run", "iterations=2"]], ids=["eval", "resume"])
@pytest.mark.parametrize("content", ["", "a: [1", "- a", "\x00", "x: !!python/object/apply:os.system [echo]"])
def test_a_configuration_that_is_none(
    command: list[str], content: str, stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (stranger / "config.yaml").write_text(content)
    code, err = said(command, capsys)
    assert code == 2, err
    assert re.search(r"config.yaml (cannot be read|is not the configuration of a run)", err), err
    assert len(err.strip().splitlines()) == 1


def test_a_module_that_the_command_line_names_is_imported(
    stranger: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once in an experiment and once on the command line; and again where the run goes on."""
    (folder / "my_envs.py").write_text("import gymnasium\ngymnasium.register('Mine-v0', 'my_envs:make')\n" + MAKE)
    (folder / "mine.yaml").write_text("env: {gym: {id: 'my_envs:Mine-v0'}}\n")
    words = [*GYM.split(), *QUIET, "experiment=mine.yaml", "out=mine"]
    code, err = said(words, capsys)
    assert (code, "write env.gym.id=my_envs:Mine-v0 on the command line too" in err) == (2, True)
    assert said([*words, "env.gym.id=my_envs:Mine-v0"], capsys) == (0, "")
    for command in (["eval", "mine", "--episodes", "1"], ["train", "resume=mine", "iterations=2"]):
        code, err = said(command, capsys)
        assert code == 2
        assert "env.gym.id=my_envs:Mine-v0 imports the module my_envs, which a file alone may not do" in err
        assert said([*command, "env.gym.id=my_envs:Mine-v0"], capsys) == (0, "")


MAKE = """
def make():
    return gymnasium.make('CartPole-v1', max_episode_steps=5)
"""


class Evil:
    """Unpickled, it leaves a file behind."""

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, ("ran", "w")


def reseal(checkpoint: Path) -> None:
    from rlfw.checkpoint import seal

    (checkpoint / "manifest.json").unlink()
    seal(checkpoint)


@pytest.mark.parametrize("command", [["eval", "run"], ["train", "resume=run", "iterations=2"]], ids=["eval", "resume"])
@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("policy/policy.safetensors", pickle.dumps(Evil())),
        ("policy/policy.safetensors", b""),
        ("state.safetensors", pickle.dumps(Evil())),
        ("state.json", b"[]"),
        ("state.json", b"{"),
        ("state.json", b"\xff\xfe"),
        ("state.json", b'{"env": 5}'),
        ("state.json", b'{"env": {"tensor": "../../etc/passwd"}}'),
        ("state.json", pickle.dumps(Evil())),
    ],
)
def test_a_checkpoint_of_a_stranger(
    command: list[str], file: str, content: bytes, stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its manifest is right, so that it is read."""
    checkpoint = max((stranger / "checkpoints").iterdir())
    (checkpoint / file).write_bytes(content)
    reseal(checkpoint)
    code, err = said(command, capsys)
    assert code in (1, 2), err
    assert re.search(r"00000001 (cannot be read as a checkpoint|was written by another version of rlfw)", err), err
    assert len(err.strip().splitlines()) == 1, err
    assert not (stranger.parent / "ran").exists()


def test_weights_of_another_network_are_named(stranger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    checkpoint = max((stranger / "checkpoints").iterdir())
    save_file({"x": torch.zeros(1)}, checkpoint / "policy" / "policy.safetensors")
    reseal(checkpoint)
    code, err = said(["eval", "run"], capsys)
    assert code == 2
    assert "is of another network than this policy" in err


@pytest.mark.parametrize("name", ["../../../outside.txt", "/dev/zero", "/etc/hostname"])
def test_a_manifest_names_no_file_elsewhere(name: str, stranger: Path) -> None:
    from rlfw.checkpoint import whole

    checkpoint = max((stranger / "checkpoints").iterdir())
    assert whole(checkpoint)
    (stranger.parent / "outside.txt").write_bytes(b"")
    listed = json.loads((checkpoint / "manifest.json").read_text())
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    listed[name] = {"bytes": 0, "sha256": empty}
    (checkpoint / "manifest.json").write_text(json.dumps(listed))
    assert not whole(checkpoint)


# ------------------------------------------------------------------------------------------------ the source

SOURCE = Path(__file__).parents[1]


def test_no_source_unpickles_or_evaluates_text() -> None:
    """But for plugins, which are executed, and for the annotations of a part that is imported already.

    What an engine carries to a node is pickled there by the engine, and read by its job alone.
    """
    allowed = {("rlfw/registry.py", "exec_module("), ("rlfw/signature.py", "eval(")}
    allowed |= {("rlfw/study/ray.py", "cloudpickle"), ("rlfw/study/slurm.py", "cloudpickle")}
    allowed |= {("rlfw/report/configs.py", "yaml.load(")}  # by yaml's safe loader, the one in C where there is one
    pattern = r"\bimport pickle|\bpickle\.|\btorch\.load\(|(?<![\w.])eval\(|(?<![\w.])exec\(|\bexec_module\(|os\.system"
    pattern += r"|shell=True|yaml\.(?:unsafe_)?load\(|trust_remote_code=True|\bmarshal\b|\bdill\b|\bcloudpickle\b"
    found = set()
    for tree in ("rlfw", "algorithms", "envs", "experiments"):
        for file in sorted((SOURCE / tree).rglob("*.py")):
            for match in re.finditer(pattern, file.read_text()):
                found.add((file.relative_to(SOURCE).as_posix(), match[0]))
    assert found == allowed


def test_what_a_model_writes_reaches_no_terminal_as_it_is() -> None:
    from rlfw.errors import printable

    assert printable("ab\x1b[2Jc\x07\r\n\u202e é") == "ab\\x1b[2Jc\\x07\\r\\n\\u202e é"
    demo = (SOURCE / "experiments" / "demo.py").read_text()
    assert "printable(row['completion'])" in demo
