//! The token arithmetic of TensorRT-LLM's AutoDeploy, to the letter, for comparison with its logs and tests.
//!
//! Plans do not use it: `plan` solves for sequences and refuses a budget that is too small, where these
//! formulas estimate tokens, clamp them, and may go below zero.

use cacheplan_handlers::{ResourceHandler, Shape};
use cacheplan_planner::budget::Fraction;
use cacheplan_transforms::Resources;

/// Its batch size and slots: at least 2 are stored, and one slot more than asked for pads graphs.
///
/// Returns (stored batch size, state slots).
pub(crate) const fn batch_and_slots(max_batch_size: u64) -> (u64, u64) {
    let stored = if max_batch_size < 2 { 2 } else { max_batch_size };
    (stored, max_batch_size.saturating_add(1))
}

/// Tokens that one forward may touch, in whole pages per sequence.
pub(crate) const fn estimate_tokens_per_forward(
    max_num_tokens: u64,
    max_batch_size: u64,
    tokens_per_block: u64,
) -> u64 {
    let (batch, _) = batch_and_slots(max_batch_size);
    max_num_tokens.div_ceil(batch).div_ceil(tokens_per_block).saturating_mul(batch).saturating_mul(tokens_per_block)
}

/// Tokens kept between one page per sequence and all that the batch can use.
pub(crate) const fn clamp_tokens(tokens: i128, max_batch_size: u64, max_seq_len: u64, tokens_per_block: u64) -> i128 {
    let (most, least) =
        (max_batch_size as i128 * max_seq_len as i128, max_batch_size as i128 * tokens_per_block as i128);
    let capped = if tokens < most { tokens } else { most };
    if capped > least { capped } else { least }
}

/// Tokens after a profiled forward: `(free - states - forward) * fraction / bytes per token`, rounded down.
///
/// Negative where the memory is known not to be there; `None` without a byte per token.
pub(crate) fn resize_tokens(
    free: u64,
    non_paged: u64,
    forward: u64,
    fraction: Fraction,
    bytes_per_token: u64,
) -> Option<i128> {
    let left = i128::from(free) - i128::from(non_paged) - i128::from(forward);
    let millionths = i128::from(fraction.of(1_000_000));
    let denominator = i128::from(bytes_per_token) * 1_000_000;
    (denominator > 0).then(|| (left * millionths).div_euclid(denominator))
}

/// What all ranks can serve and the user allows, in whole blocks.
pub(crate) fn agreed_tokens(of_ranks: &[u64], stated: Option<u64>, tokens_per_block: u64) -> u64 {
    let least = of_ranks.iter().copied().chain(stated).min().unwrap_or(0);
    least - least % tokens_per_block
}

/// Rows of a state that no manager owns: one per slot, and room for drafts where a hybrid manager hands out the slots.
pub(crate) const fn local_state_rows(max_batch_size: u64, max_draft_len: u64, hybrid: bool) -> u64 {
    let (_, slots) = batch_and_slots(max_batch_size);
    if hybrid { slots.saturating_add(max_draft_len).saturating_add(1) } else { slots }
}

/// Whether it keeps blocks for later prompts: only if every resource is paged, since its states have no checkpoints.
///
/// Our prefix cache keeps states as well, so plans do not ask this.
pub(crate) fn reuses_blocks(resources: &Resources) -> bool {
    resources.iter().all(|resource| resource.handler.is_paged())
}

/// Whether it sizes its pools anew after a profiled forward: something is paged, and a fraction is stated.
pub(crate) fn needs_resize(resources: &Resources, fraction: Option<Fraction>) -> bool {
    fraction.is_some() && resources.iter().any(|resource| resource.handler.is_paged())
}

/// What AutoDeploy's manager is told about a model's states; dummies stand for what the model lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MambaParams {
    /// Heads of the recurrent state; `conv_dim` without one.
    pub(crate) num_heads: u64,
    /// 1 without a recurrent state.
    pub(crate) head_dim: u64,
    /// 0 without a recurrent state.
    pub(crate) d_state: u64,
    /// Channels of the convolution state; 1 without one.
    pub(crate) conv_dim: u64,
    /// Kernel width of the convolution; 1, hence no state, without one.
    pub(crate) d_conv: u64,
    /// Implied by the dimensions; 0 where either state is missing.
    pub(crate) n_groups: u64,
    /// Layers that the manager owns.
    pub(crate) layers: usize,
}

/// The parameters for `ssm` and `conv` references with these many equal handlers; `None` without any state.
pub(crate) fn mamba_params(
    ssm: Option<(&ResourceHandler, usize)>,
    conv: Option<(&ResourceHandler, usize)>,
) -> Option<MambaParams> {
    let layers = managed_layers(ssm.map_or(0, |(_, count)| count), conv.map_or(0, |(_, count)| count));
    if layers == 0 {
        return None;
    }
    let (conv_dim, columns) = conv.and_then(|(conv, _)| conv_of(conv)).unwrap_or((1, 0));
    let state = ssm.and_then(|(ssm, _)| ssm_of(ssm));
    let (num_heads, head_dim, d_state) = state.unwrap_or(if conv.is_some() { (conv_dim, 1, 0) } else { (1, 1, 0) });
    let n_groups = match conv {
        Some(_) if d_state > 0 => groups_of(num_heads, head_dim, d_state, conv_dim).unwrap_or(0),
        _ => 0,
    };
    Some(MambaParams { num_heads, head_dim, d_state, conv_dim, d_conv: columns + 1, n_groups, layers })
}

/// The group count that the dimensions of both states imply; `None` if no integer does.
pub(crate) fn n_groups(ssm: &ResourceHandler, conv: &ResourceHandler) -> Option<u64> {
    let ((num_heads, head_dim, d_state), (conv_dim, _)) = (ssm_of(ssm)?, conv_of(conv)?);
    groups_of(num_heads, head_dim, d_state, conv_dim)
}

/// Layers of the one state manager: the fewer of both lists, or the longer where one is empty.
fn managed_layers(ssm: usize, conv: usize) -> usize {
    if ssm > 0 && conv > 0 { ssm.min(conv) } else { ssm.max(conv) }
}

/// The group count that `conv_dim = head_dim * num_heads + 2 * n_groups * d_state` implies; `None` if no integer does.
///
/// A state without a state dimension poses no constraint and has no groups.
fn groups_of(num_heads: u64, head_dim: u64, d_state: u64, conv_dim: u64) -> Option<u64> {
    if d_state == 0 {
        return Some(0);
    }
    let both = conv_dim.checked_sub(head_dim.checked_mul(num_heads)?)?;
    let pair = d_state.checked_mul(2)?;
    (both % pair == 0).then_some(both / pair)
}

fn ssm_of(handler: &ResourceHandler) -> Option<(u64, u64, u64)> {
    let Some(Shape::Ssm { num_heads, head_dim, d_state }) = handler.known_shape() else { return None };
    Some((num_heads, head_dim, d_state))
}

fn conv_of(handler: &ResourceHandler) -> Option<(u64, u64)> {
    let Some(Shape::CausalConv { conv_dim, columns }) = handler.known_shape() else { return None };
    Some((conv_dim, columns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cacheplan_handlers::DType;
    use rstest::rstest;

    const GIB: u64 = 1 << 30;

    #[rstest]
    #[case((64, 4, 16), 64)]
    #[case((100, 4, 16), 128)]
    #[case((8192, 64, 32), 8192)]
    #[case((520, 4, 32), 640)]
    #[case((1, 1, 32), 64)]
    fn a_forward_touches_whole_pages_of_every_sequence(
        #[case] (tokens, batch, block): (u64, u64, u64),
        #[case] expected: u64,
    ) {
        assert_eq!(estimate_tokens_per_forward(tokens, batch, block), expected);
    }

    #[rstest]
    #[case(1_000_000_000, 512)]
    #[case(-5, 128)]
    #[case(300, 300)]
    #[case(100, 128)]
    fn tokens_are_clamped_to_the_batch(#[case] tokens: i128, #[case] expected: i128) {
        assert_eq!(clamp_tokens(tokens, 4, 128, 32), expected);
    }

    #[rstest]
    #[case((40 * GIB, 2 * GIB, 3 * GIB, 8192), Some(4_128_768))]
    #[case((GIB, 2 * GIB, 0, 4096), Some(-235_930))]
    #[case((GIB, 0, 0, 0), None)]
    fn a_resize_divides_what_is_left(
        #[case] (free, states, forward, bytes): (u64, u64, u64, u64),
        #[case] tokens: Option<i128>,
    ) {
        assert_eq!(resize_tokens(free, states, forward, Fraction::new(0.9).unwrap(), bytes), tokens);
    }

    #[rstest]
    #[case(&[1000, 900, 1100], Some(950), 32, 896)]
    #[case(&[1000, 900, 1100], Some(950), 1, 900)]
    #[case(&[1000], None, 100, 1000)]
    fn ranks_agree_on_the_least(
        #[case] ranks: &[u64],
        #[case] stated: Option<u64>,
        #[case] block: u64,
        #[case] tokens: u64,
    ) {
        assert_eq!(agreed_tokens(ranks, stated, block), tokens);
    }

    #[rstest]
    #[case(4, 2, true, 8)]
    #[case(4, 2, false, 5)]
    fn local_states_have_the_rows_of_their_slots(
        #[case] batch: u64,
        #[case] drafts: u64,
        #[case] hybrid: bool,
        #[case] rows: u64,
    ) {
        assert_eq!(local_state_rows(batch, drafts, hybrid), rows);
    }

    #[test]
    fn a_batch_of_one_is_stored_as_two() {
        assert_eq!(batch_and_slots(1), (2, 2));
        assert_eq!(batch_and_slots(4), (4, 5));
    }

    #[test]
    fn dummies_stand_for_a_missing_state() {
        let conv = ResourceHandler::causal_conv(256, 4, vec![], DType::F32).unwrap();
        let ssm = ResourceHandler::ssm(4, 64, 16, DType::F32).unwrap();
        let only_conv = mamba_params(None, Some((&conv, 3))).unwrap();
        assert_eq!((only_conv.num_heads, only_conv.head_dim, only_conv.d_state), (256, 1, 0));
        assert_eq!((only_conv.n_groups, only_conv.layers), (0, 3));
        let only_ssm = mamba_params(Some((&ssm, 2)), None).unwrap();
        assert_eq!((only_ssm.conv_dim, only_ssm.d_conv, only_ssm.n_groups, only_ssm.layers), (1, 1, 0, 2));
        assert_eq!(mamba_params(Some((&ssm, 3)), Some((&conv, 2))).unwrap().layers, 2);
        assert_eq!(mamba_params(None, None), None);
    }
}
