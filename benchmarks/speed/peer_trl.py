"""TRL's GRPO at the setting of text_grpo.py: peer_trl.py STEPS SEED THREADS BETA. Runs in its own environment."""

import os
import random
import string
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

CHARACTERS = string.digits + string.ascii_letters + " +-*/=?.,:()\n"


def digits(completions: list[str], **_: object) -> list[float]:
    """The share of digits."""
    return [sum(c.isdigit() for c in text) / max(1, len(text)) for text in completions]


steps, seed, threads = (int(word) for word in sys.argv[1:4])
beta = float(sys.argv[4])
torch.set_num_threads(threads)
torch.manual_seed(seed)
vocabulary = {"<pad>": 0, "<eos>": 1, "<unk>": 2} | {c: i + 3 for i, c in enumerate(CHARACTERS)}
characters = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
characters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
characters.decoder = decoders.Fuse()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=characters, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
)
config = LlamaConfig(
    vocab_size=len(vocabulary),
    hidden_size=128,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=4,
    max_position_embeddings=256,
    tie_word_embeddings=True,
    pad_token_id=0,
    eos_token_id=1,
    bos_token_id=None,
)
draw = random.Random(seed)
prompts = [f"Compute {draw.randint(0, 9)}+{draw.randint(0, 9)} now:" for _ in range(512)]
with tempfile.TemporaryDirectory() as folder:
    LlamaForCausalLM(config).save_pretrained(folder)  # with beta > 0 the reference is loaded by name
    tokenizer.save_pretrained(folder)
    GRPOTrainer(
        model=LlamaForCausalLM.from_pretrained(folder),
        reward_funcs=digits,
        args=GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=128,
            num_generations=8,
            max_completion_length=32,
            temperature=1.0,
            beta=beta,
            learning_rate=1e-6,
            lr_scheduler_type="constant",
            max_steps=steps,
            bf16=False,
            gradient_checkpointing=False,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            seed=seed,
        ),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer,
    ).train()
