"""GPT-2 small, 124M parameters, with the training recipe that was published for its size.

Sizes: Radford et al., Language Models are Unsupervised Multitask Learners (2019), and the released
model. That paper gives no learning rate; the recipe is GPT-3 Small's, which has the same shape:
Brown et al., https://arxiv.org/abs/2005.14165, table 2.1 and appendix B (300B tokens, half a
million per step, peak 6e-4, warm-up over 375M tokens, cosine to 10 %).

As it stands it trains on the standard library with a tokenizer of its own. For another corpus:
--data.source TextFiles --data.source.path books/, and for OpenAI's vocabulary
--data.tokenizer TokenizerFile --data.tokenizer.path gpt2/tokenizer.json.
"""

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, TrainTokenizer
from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positional_schemes import Learned
from jaxformer.models.config import DecoderConfig
from jaxformer.sharding import MeshConfig
from jaxformer.training.optim import AdamW
from jaxformer.training.schedules import Cosine


def get_config() -> Config:
    return Config(
        model=DecoderConfig(
            vocab_size=50304,  # 50257 tokens, padded to a multiple of 128
            num_layers=12,
            model_dim=768,
            num_heads=12,
            mlp_dim=3072,
            position=Learned(max_length=1024),
            norm=LayerNorm(eps=1e-5),
            activation="gelu_tanh",
            gated=False,
            attention_bias=True,
            attention_output_bias=True,
            mlp_bias=True,
            tie_embeddings=True,
        ),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=50257),
            sequence_length=1024,
            batch_size=512,
        ),
        optimizer=AdamW(
            schedule=Cosine(learning_rate=6e-4, warmup_steps=715, final_fraction=0.1),
            weight_decay=0.1,
            beta1=0.9,
            beta2=0.95,
            eps=1e-8,
        ),
        train=TrainConfig(
            steps=572_000,
            clip_norm=1.0,
            loss_chunk=256,
            gradient_accumulation=8,
            eval_interval=1000,
            checkpoint_interval=1000,
        ),
        mesh=MeshConfig(data=-1),
    )
