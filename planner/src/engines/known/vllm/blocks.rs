//! Tokens in a block: what kernels read, and what states are aligned to.

use std::ops::Range;

use cacheplan_handlers::Kind;

use super::groups::shape;
use super::kernels;
use super::packed::Family;
use super::states::{aligned_state, cache_mode, chunk, every_state};
use super::{capability, is_blackwell, lcm};
use crate::budget::MambaCacheMode;
use crate::engines::caches::Attention;
use crate::engines::situation::Situation;
use crate::engines::version::Version;

/// From here on the alignment of a latent's block is that of the kernel that is chosen (change 37467, April 2026), and a
/// stated block is an alignment of a hybrid's block instead of its least size.
pub(super) const ASKS_THE_KERNEL: Version = Version(0, 21, 0);
/// Read in 0.12.0 to 0.17.1, and not in 0.11.2 and 0.18.0: a hybrid's heads of 256 on Blackwell have blocks of 32, as FlashInfer
/// reads none of 16.
pub(super) const WIDE_ON_BLACKWELL: Range<Version> = Version(0, 12, 0)..Version(0, 18, 0);
/// Seen in 0.32.0 and 0.33.0: on Hopper a latent's kernel reads blocks of 16, on Blackwell of 32.
pub(super) const SMALL_BLOCKS_OF_LATENTS: Version = Version(0, 32, 0);
/// Heads of so many channels have a kernel of their own, which reads blocks of 64, where their cache is 8 bits wide and on
/// Blackwell.
const WIDE_HEAD: u64 = 512;
/// Seen in 0.32.0 and 0.33.0, of Gemma 4.
pub(super) const WIDE_HEADS_IN_LARGE_BLOCKS: Version = Version(0, 32, 0);

/// `A * ceil(state page / (A * bytes per token))` where there are states, `A` being the kernel's alignment.
pub(super) fn block_size(situation: &Situation<'_>) -> u64 {
    let attention: Vec<&Attention<'_>> = situation.caches.attention.iter().filter(|cache| !cache.draft).collect();
    let latent = attention.iter().any(|cache| *cache.handler.kind() == Kind::MlaPaged);
    let stated = situation.options.block_size;
    let family = Family::of(&situation.model.model_type);
    if let Some(block) = family.and_then(|family| family.block(capability(situation))) {
        return stated.unwrap_or(block);
    }
    let kernel = kernel_block(situation, latent);
    let state = situation.caches.states.iter().map(|state| aligned_state(situation, state)).max().unwrap_or(0);
    let per_token = attention.iter().map(|cache| cache.bytes.div_ceil(cache.stride)).max();
    let (Some(per_token), true) = (per_token, state > 0) else { return stated.unwrap_or(kernel) };
    // A state for every block is one at the end of chunks.
    let scan = every_state(situation).filter(|_| cache_mode(situation) == MambaCacheMode::All).unwrap_or(1);
    if situation.version < ASKS_THE_KERNEL {
        let wide = WIDE_ON_BLACKWELL.contains(&situation.version) && is_blackwell(capability(situation));
        let is_wide = |cache: &&Attention<'_>| shape(cache.handler).1 == 256;
        let alignment = match latent {
            true => 64,
            false if wide && attention.iter().any(is_wide) => 32,
            false => 16,
        };
        let alignment = lcm(alignment, scan);
        return (alignment * state.div_ceil(alignment * per_token)).max(stated.unwrap_or(0));
    }
    let alignment = kernel.max(stated.unwrap_or(0)).max(if latent { 128 } else { 0 });
    let alignment = lcm(lcm(alignment, scan), chunk(situation));
    (alignment * state.div_ceil(alignment * per_token)).next_multiple_of(kernel)
}

/// Tokens that a block of attention has unless something else asks for more.
fn kernel_block(situation: &Situation<'_>, latent: bool) -> u64 {
    let caches = &situation.caches;
    let blackwell = is_blackwell(capability(situation));
    let wide = caches.attention.iter().all(|cache| cache.handler.dtype().row_bytes(2) >= Some(4));
    let is_long = |cache: &Attention<'_>| shape(cache.handler).1 >= WIDE_HEAD;
    let is_narrow = |cache: &Attention<'_>| cache.handler.dtype().row_bytes(1) == Some(1);
    match latent {
        false if situation.version < WIDE_HEADS_IN_LARGE_BLOCKS => 16,
        false if caches.attention.iter().any(|cache| is_long(cache) && (blackwell || is_narrow(cache))) => 64,
        false => 16,
        true if situation.version < SMALL_BLOCKS_OF_LATENTS || (caches.sparse && !is_amd(situation)) => 64,
        true => kernels::wanted(situation).and_then(|wanted| wanted.block(!wide)).unwrap_or(64),
    }
}

/// What blocks of sparse latents are multiples of.
pub(super) fn sparse_block(situation: &Situation<'_>) -> u64 {
    match is_amd(situation) {
        true => 1,
        false if is_blackwell(capability(situation)) => 32,
        false => 64,
    }
}

fn is_amd(situation: &Situation<'_>) -> bool {
    kernels::is_amd(situation.options, situation.version)
}
