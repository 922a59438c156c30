//! Any sequence of blocks with any dimensions.
#![no_main]

mod limits;

use cacheplan_handlers::{DType, DecayKind};
use cacheplan_transforms::{GraphBuilder, layers::{Attention, CompressedAttention, FeedForward, LinearAttention, Mamba1, Mamba2, Mla}};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Block {
    Layer,
    Attention { dims: [u64; 3], value_dim: Option<u64>, window: Option<u64>, shares_layer: Option<u32> },
    Mla { dims: [u64; 5], q_lora_rank: Option<u64>, window: Option<u64>, shares_layer: Option<u32> },
    Indexer(u64),
    Compressed { dims: [u64; 4], index_head_dim: Option<u64> },
    Mamba1([u64; 4]),
    Mamba2([u64; 5]),
    Linear { dims: [u64; 4], d_conv: Option<u64>, delta_rule: bool, decay: u8 },
    Convolution([u64; 2]),
    Recurrence([u64; 2]),
    Rwkv4(u64),
    FeedForward([u64; 4]),
}

fuzz_target!(|model: (u64, Vec<Block>)| {
    let (hidden_size, blocks) = model;
    limits::walk(|| {
        let mut builder = GraphBuilder::new("fuzzed", hidden_size, DType::Bf16);
        blocks.iter().for_each(|block| add(&mut builder, block));
        Ok(builder.build())
    });
});

fn add(builder: &mut GraphBuilder, block: &Block) {
    match *block {
        Block::Layer => {
            builder.layer();
        }
        Block::Attention { dims: [num_heads, num_kv_heads, head_dim], value_dim, window, shares_layer } => {
            let heads = Attention::grouped(num_heads, num_kv_heads, head_dim);
            builder.attention(&Attention { value_dim, window, shares_layer, ..heads });
        }
        Block::Mla { dims, q_lora_rank, window, shares_layer } => {
            let [num_heads, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim] = dims;
            let cache_dtype = None;
            builder.mla(&Mla {
                num_heads,
                q_lora_rank,
                kv_lora_rank,
                qk_nope_head_dim,
                qk_rope_head_dim,
                v_head_dim,
                window,
                cache_dtype,
                shares_layer,
            });
        }
        Block::Indexer(width) => {
            builder.indexer(width);
        }
        Block::Compressed { dims: [num_heads, head_dim, window, ratio], index_head_dim } => {
            let cache_dtype = None;
            builder.compressed_attention(&CompressedAttention {
                num_heads,
                head_dim,
                window,
                ratio,
                index_head_dim,
                cache_dtype,
            });
        }
        Block::Mamba1([d_inner, d_state, d_conv, dt_rank]) => {
            builder.mamba1(&Mamba1 { d_inner, d_state, d_conv, dt_rank, state_dtype: None });
        }
        Block::Mamba2([num_heads, head_dim, d_state, n_groups, d_conv]) => {
            builder.mamba2(&Mamba2 { num_heads, head_dim, d_state, n_groups, d_conv, state_dtype: None });
        }
        Block::Linear { dims: [num_k_heads, num_v_heads, head_k_dim, head_v_dim], d_conv, delta_rule, decay } => {
            let state_dtype = None;
            let decay = [DecayKind::Fixed, DecayKind::PerHead, DecayKind::PerChannel][usize::from(decay % 3)];
            builder.linear_attention(&LinearAttention {
                num_k_heads,
                num_v_heads,
                head_k_dim,
                head_v_dim,
                delta_rule,
                decay,
                d_conv,
                state_dtype,
            });
        }
        Block::Convolution([channels, d_conv]) => {
            builder.short_conv(channels, d_conv);
        }
        Block::Recurrence([width, d_conv]) => {
            builder.rg_lru(width, d_conv, None);
        }
        Block::Rwkv4(width) => {
            builder.rwkv4(width);
        }
        Block::FeedForward([intermediate_size, matrices, experts, shared_size]) => {
            let experts_per_token = experts.min(2);
            let sizes = FeedForward { intermediate_size, matrices, experts, experts_per_token, shared_size, latent_size: None };
            builder.feed_forward(&sizes);
        }
    }
}
