//! The behaviour that AutoDeploy's own tests of its resource handlers pin down, row by row.
//!
//! Row numbers are those of its table of cases; rows about `torch.device` or about being an instance of a base class say
//! here what they are for: the growth, since one struct describes every kind.

use cacheplan_handlers::{
    DType, DecayKind, Dim, Growth, HandlerError, Kind, KvLayout, Mismatch, Recurrence, ResourceHandler, Shape,
};
use rstest::rstest;

const MAX_SEQ_LEN: u64 = 4096;

const BLOCKS: u64 = 10;
const TOKENS_PER_BLOCK: u64 = 32;
const SLOTS: u64 = 5;
const LONGEST: u64 = 128;
const DRAFT_POSITIONS: u64 = 3;

fn kv(heads: u64, head_dim: u64, dtype: DType) -> ResourceHandler {
    ResourceHandler::kv_paged(heads, head_dim, dtype).unwrap()
}

fn ssm(heads: u64, head_dim: u64, d_state: u64, dtype: DType) -> ResourceHandler {
    ResourceHandler::ssm(heads, head_dim, d_state, dtype).unwrap()
}

fn conv(conv_dim: u64, d_conv: u64, dtype: DType) -> ResourceHandler {
    ResourceHandler::causal_conv(conv_dim, d_conv, vec![], dtype).unwrap()
}

fn shape(handler: &ResourceHandler) -> Vec<u64> {
    handler.shape().iter().map(|dim| dim.size).collect()
}

#[rstest]
#[case::row_1(8, 64, DType::Bf16, KvLayout::Nhd)]
#[case::row_2(4, 128, DType::F32, KvLayout::Hnd)]
fn kv_paged_keeps_its_fields(
    #[case] heads: u64,
    #[case] head_dim: u64,
    #[case] dtype: DType,
    #[case] layout: KvLayout,
) {
    let handler = kv(heads, head_dim, dtype).with_layout(layout);
    assert_eq!(handler.kind(), &Kind::KvPaged);
    assert_eq!(handler.dim("kv_factor"), Some(2));
    assert_eq!(handler.dim("num_kv_heads"), Some(heads));
    assert_eq!(handler.dim("head_dim"), Some(head_dim));
    assert_eq!((handler.dtype(), handler.layout()), (dtype, Some(layout)));
}

/// Upstream's handler puts the token axis before `kv_factor` in NHD, `(10, 32, 2, 8, 64)`, which its own manager's view
/// contradicts. Here handler and manager agree on the manager's order.
#[rstest]
#[case::row_3a(KvLayout::Hnd, &[10, 2, 8, 32, 64])]
#[case::row_3b(KvLayout::Nhd, &[10, 2, 32, 8, 64])]
fn kv_paged_allocates_blocks(#[case] layout: KvLayout, #[case] expected: &[u64]) {
    assert_eq!(kv(8, 64, DType::F16).with_layout(layout).allocation_shape(BLOCKS, TOKENS_PER_BLOCK), expected);
}

#[test]
fn row_4_kv_is_paged_and_no_state() {
    let handler = kv(8, 64, DType::F16);
    assert!(handler.is_paged() && !handler.is_state());
}

#[rstest]
#[case::row_5(&[4, 64, 16], DType::Bf16)]
#[case::row_6(&[256], DType::F16)]
#[case::row_7(&[512, 3], DType::Bf16)]
#[case::row_8(&[4, 64, 16], DType::F32)]
fn state_keeps_shape_and_dtype(#[case] dims: &[u64], #[case] dtype: DType) {
    let handler = ResourceHandler::state(dims, dtype).unwrap();
    assert_eq!((shape(&handler).as_slice(), handler.dtype()), (dims, dtype));
}

#[test]
fn row_9_state_allocates_a_row_per_slot() {
    let handler = ResourceHandler::state(&[4, 64, 16], DType::Bf16).unwrap();
    assert_eq!(handler.allocation_shape(SLOTS, LONGEST), [5, 4, 64, 16]);
}

#[test]
fn row_10_state_is_not_paged() {
    let handler = ResourceHandler::state(&[4, 64, 16], DType::Bf16).unwrap();
    assert!(handler.is_state() && !handler.is_paged());
    assert_eq!(handler.bytes_per_token(), None);
}

#[rstest]
#[case::row_11(&[8, 64], DType::F16)]
#[case::row_12(&[128], DType::Bf16)]
fn unpaged_keeps_its_token_shape(#[case] token_shape: &[u64], #[case] dtype: DType) {
    assert_eq!(shape(&ResourceHandler::unpaged(token_shape, dtype).unwrap()), token_shape);
}

#[rstest]
#[case::row_13a(&[8, 64], DType::F16)]
#[case::row_13b(&[4, 128], DType::Bf16)]
#[case::row_13c(&[1, 64], DType::F32)]
fn unpaged_allocates_every_token_of_every_slot(#[case] token_shape: &[u64], #[case] dtype: DType) {
    let handler = ResourceHandler::unpaged(token_shape, dtype).unwrap();
    assert_eq!(handler.allocation_shape(SLOTS, LONGEST), [&[5, 128], token_shape].concat());
    assert_eq!(handler.dtype(), dtype);
}

#[test]
fn rows_14_15_unpaged_grows_per_token_outside_pages() {
    let handler = ResourceHandler::unpaged(&[8, 64], DType::F16).unwrap();
    assert_eq!(handler.growth(), Growth::PerSlotToken);
    assert!(!handler.is_paged());
}

#[rstest]
#[case::row_19("float16", DType::F16)]
#[case::row_20("bfloat16", DType::Bf16)]
#[case::row_21("float32", DType::F32)]
#[case::row_22("fp8", DType::F8E4m3)]
fn dtype_names_of_the_engines_parse(#[case] name: &str, #[case] dtype: DType) {
    assert_eq!(name.parse(), Ok(dtype));
}

#[rstest]
#[case::row_16("auto", DType::F16, DType::F16)]
#[case::row_17("auto", DType::Bf16, DType::Bf16)]
#[case::row_18("auto", DType::F32, DType::F32)]
#[case::row_19("float16", DType::Bf16, DType::F16)]
fn a_cache_dtype_of_auto_is_the_tensors_own(#[case] stated: &str, #[case] tensor: DType, #[case] expected: DType) {
    assert_eq!(DType::resolve(stated, tensor), Ok(expected));
}

#[rstest]
#[case::row_23_heads_may_differ(kv(8, 64, DType::F16), kv(4, 64, DType::F16), true)]
#[case::row_23_layout(kv(8, 64, DType::F16), kv(8, 64, DType::F16).with_layout(KvLayout::Nhd), false)]
#[case::row_24_head_dim(kv(8, 64, DType::F16), kv(8, 128, DType::F16), false)]
#[case::row_24_dtype(kv(8, 64, DType::F16), kv(8, 64, DType::Bf16), false)]
#[case::row_25_attention_type(
    kv(8, 64, DType::F16).with_kv_factor(1).unwrap(),
    ResourceHandler::mla_paged(48, 16, DType::F16).unwrap(),
    false
)]
#[case::kv_factor(kv(8, 64, DType::F16), kv(8, 64, DType::F16).with_kv_factor(1).unwrap(), false)]
#[case::window(kv(8, 64, DType::F16), kv(8, 64, DType::F16).with_window(32).unwrap(), false)]
#[case::row_26(ssm(8, 64, 16, DType::Bf16), ssm(8, 64, 16, DType::Bf16), true)]
#[case::row_27_heads(ssm(8, 64, 16, DType::Bf16), ssm(4, 64, 16, DType::Bf16), false)]
#[case::row_27_head_dim(ssm(8, 64, 16, DType::Bf16), ssm(8, 128, 16, DType::Bf16), false)]
#[case::row_27_d_state(ssm(8, 64, 16, DType::Bf16), ssm(8, 64, 32, DType::Bf16), false)]
#[case::row_27_dtype(ssm(8, 64, 16, DType::Bf16), ssm(8, 64, 16, DType::F32), false)]
#[case::row_28(conv(256, 4, DType::F32), conv(256, 4, DType::F32), true)]
#[case::row_29_conv_dim(conv(256, 4, DType::F32), conv(512, 4, DType::F32), false)]
#[case::row_29_d_conv(conv(256, 4, DType::F32), conv(256, 5, DType::F32), false)]
#[case::row_29_dtype(conv(256, 4, DType::F32), conv(256, 4, DType::Bf16), false)]
#[case::state_is_no_ssm(
    ResourceHandler::state(&[4, 64, 16], DType::F32).unwrap(),
    ssm(4, 64, 16, DType::F32),
    false
)]
fn resources_share_a_pool_exactly_when_their_keys_agree(
    #[case] one: ResourceHandler,
    #[case] other: ResourceHandler,
    #[case] compatible: bool,
) {
    let (one, other) = (one.compat_key(MAX_SEQ_LEN), other.compat_key(MAX_SEQ_LEN));
    assert_eq!(one == other, compatible);
    assert_eq!(one.mismatches(&other).next().is_none(), compatible);
    assert_eq!(other.mismatches(&one).next().is_none(), compatible);
}

#[rstest]
#[case::row_30(ssm(8, 64, 16, DType::Bf16), Kind::IntermediateSsm, &[8, 64, 16])]
#[case::row_32(conv(256, 4, DType::F32), Kind::IntermediateCausalConv, &[256, 3])]
#[case::generic(ResourceHandler::state(&[10, 20], DType::F32).unwrap(), Kind::IntermediateState, &[10, 20])]
fn a_speculative_twin_has_its_bases_shape_and_is_no_base(
    #[case] base: ResourceHandler,
    #[case] kind: Kind,
    #[case] expected: &[u64],
) {
    let twin = base.intermediate().unwrap();
    assert_eq!(twin.kind(), &kind);
    assert_eq!(shape(&twin), expected);
    assert_eq!(twin.dtype(), base.dtype());
    let (key, of_base) = (twin.compat_key(MAX_SEQ_LEN), base.compat_key(MAX_SEQ_LEN));
    assert!(matches!(key.mismatches(&of_base).next(), Some(Mismatch::Kind { .. })));
    assert_eq!(Some(twin), base.intermediate());
}

#[rstest]
#[case::row_31_33(kv(8, 64, DType::F16))]
#[case::a_twin_has_no_twin(ssm(8, 64, 16, DType::F32).intermediate().unwrap())]
fn what_is_no_state_of_a_sequence_has_no_twin(#[case] handler: ResourceHandler) {
    assert_eq!(handler.intermediate(), None);
}

#[rstest]
#[case::row_34a(ssm(8, 64, 16, DType::F32).intermediate().unwrap(), true)]
#[case::row_34b(conv(256, 4, DType::F32).intermediate().unwrap(), true)]
#[case::row_35a(ssm(8, 64, 16, DType::F32), false)]
#[case::row_35b(conv(256, 4, DType::F32), false)]
#[case::row_35c(kv(8, 64, DType::F16), false)]
fn only_twins_are_speculative(#[case] handler: ResourceHandler, #[case] speculative: bool) {
    assert_eq!(handler.is_speculative(), speculative);
}

#[test]
fn a_recurrence_is_read_back_and_says_what_a_step_takes() {
    let decay = DecayKind::PerChannel;
    let recurrence = Recurrence::LinearAttention { num_k_heads: 2, delta_rule: true, decay };
    let state = ssm(4, 64, 128, DType::F32).with_recurrence(recurrence);
    let text = serde_json::to_string(&state).unwrap();
    assert!(text.contains(r#""recurrence":{"kind":"linear_attention","num_k_heads":2"#), "{text}");
    assert_eq!(serde_json::from_str::<ResourceHandler>(&text).unwrap(), state);
    let inputs = state.replay_inputs(DType::F16).unwrap().unwrap();
    let found: Vec<_> = inputs.iter().map(|input| (input.kind().name(), shape(input), input.dtype())).collect();
    assert_eq!(
        found,
        [
            ("replay.k", vec![2, 64], DType::F16),
            ("replay.v", vec![4, 128], DType::F16),
            ("replay.beta", vec![4], DType::F32),
            ("replay.g", vec![4, 64], DType::F32),
        ]
    );
    let of_rank = Recurrence::LinearAttention { num_k_heads: 1, delta_rule: true, decay };
    assert_eq!((recurrence.of_rank(2), recurrence.of_rank(4)), (of_rank, of_rank));
    assert_eq!(ssm(4, 64, 128, DType::F32).replay_inputs(DType::F16), Ok(None));
}

#[test]
fn only_convolutions_have_columns_of_candidates() {
    let wide = conv(256, 4, DType::F32).with_candidates(5).unwrap();
    assert_eq!((shape(&wide), wide.has_candidates()), (vec![256, 3 + 5], true));
    let state = ssm(4, 64, 128, DType::F32).with_recurrence(Recurrence::Ssd { n_groups: 1 });
    assert_eq!(state.with_candidates(5), Ok(state.clone()));
    assert!(!state.has_candidates());
}

#[test]
fn a_twin_allocates_every_draft_position() {
    let twin = conv(256, 4, DType::F32).intermediate().unwrap();
    assert_eq!(twin.allocation_shape(SLOTS, DRAFT_POSITIONS), [5, 3, 256, 3]);
}

#[rstest]
#[case(kv(8, 64, DType::F16), 2048)]
#[case(kv(4, 128, DType::F32), 4096)]
#[case(kv(8, 128, DType::F8E4m3), 2048)]
#[case(kv(8, 128, DType::Nvfp4), 1152)]
#[case(ResourceHandler::mla_paged(512, 64, DType::Bf16).unwrap(), 1152)]
#[case(ResourceHandler::mla_paged(512, 64, DType::F8E4m3).unwrap(), 576)]
fn bytes_per_token_follow_from_shape_and_dtype(#[case] handler: ResourceHandler, #[case] bytes: u64) {
    assert_eq!(handler.bytes_per_token(), Some((bytes, 1)));
}

#[test]
fn a_mismatch_says_what_differs() {
    let text = |one: &ResourceHandler, other: &ResourceHandler| {
        one.compat_key(MAX_SEQ_LEN).mismatches(&other.compat_key(MAX_SEQ_LEN)).next().unwrap().to_string()
    };
    let base = kv(8, 64, DType::F16);
    assert_eq!(text(&kv(8, 80, DType::F16), &base), "head_dim 80 differs from 64");
    assert_eq!(text(&kv(8, 64, DType::Bf16), &base), "dtype bf16 differs from f16");
    assert_eq!(text(&base.clone().with_layout(KvLayout::Nhd), &base), "layout NHD differs from HND");
    assert_eq!(text(&base.clone().with_window(1024).unwrap(), &base), "window 1024 differs from full attention");
    assert_eq!(text(&conv(256, 4, DType::F16), &base), "kind causal_conv differs from kv_paged");
}

/// A window that no sequence outgrows is full attention.
#[rstest]
#[case(1024, "")]
#[case(1025, "window 1024 differs from full attention")]
#[case(512, "")]
fn a_window_tells_pools_apart_only_where_it_binds(#[case] max_seq_len: u64, #[case] expected: &str) {
    let (full, windowed) = (kv(8, 64, DType::F16), kv(8, 64, DType::F16).with_window(1024).unwrap());
    let (full, windowed) = (full.compat_key(max_seq_len), windowed.compat_key(max_seq_len));
    let text = windowed.mismatches(&full).map(|why| why.to_string()).collect::<String>();
    assert_eq!((text.as_str(), windowed == full), (expected, expected.is_empty()));
}

#[test]
fn a_known_kind_has_its_own_dimensions() {
    let shape = ssm(8, 64, 16, DType::F32).known_shape();
    assert_eq!(shape, Some(Shape::Ssm { num_heads: 8, head_dim: 64, d_state: 16 }));
    assert_eq!(ResourceHandler::state(&[8, 64, 16], DType::F32).unwrap().known_shape(), None);
    let typo = vec![Dim::whole("num_heads", 8), Dim::whole("haed_dim", 64), Dim::whole("d_state", 16)];
    let error = ResourceHandler::new(Kind::Ssm, Growth::PerSequence, typo, DType::F32, None).unwrap_err().to_string();
    let expected = "ssm resource: its dimensions are [num_heads=8, haed_dim=64, d_state=16]; \
                    they must be [num_heads, head_dim, d_state]";
    assert_eq!(error, expected);
}

#[rstest]
#[case::zero(ResourceHandler::kv_paged(0, 64, DType::F16), "num_kv_heads")]
#[case::width_one_has_no_state(ResourceHandler::causal_conv(8, 1, vec![], DType::F16), "d_conv - 1")]
#[case::absurd(ResourceHandler::ssm(u64::MAX, u64::MAX, 2, DType::F32), "takes more than")]
#[case::sections(ResourceHandler::causal_conv(8, 4, vec![4, 3], DType::F16), "add up to 7, not to 8")]
#[case::window(kv(8, 64, DType::F16).with_window(0), "window is 0")]
#[case::kv_factor(kv(8, 64, DType::F16).with_kv_factor(3), "kv_factor is 3")]
fn dimensions_that_make_no_sense_are_errors(#[case] made: Result<ResourceHandler, HandlerError>, #[case] says: &str) {
    let message = made.unwrap_err().to_string();
    assert!(message.contains(says), "{message}");
}

#[test]
fn handlers_survive_json_and_bad_ones_are_refused() {
    let handler = kv(8, 64, DType::F16).with_window(128).unwrap();
    let json = serde_json::to_string(&handler).unwrap();
    assert_eq!(serde_json::from_str::<ResourceHandler>(&json).unwrap(), handler);
    let zero = json.replace("\"size\":64", "\"size\":0");
    assert!(serde_json::from_str::<ResourceHandler>(&zero).unwrap_err().to_string().contains("head_dim"));
}

#[test]
fn a_framework_adds_a_kind_by_a_namespaced_name() {
    let custom = Kind::try_from("acme.ring_buffer".to_owned()).unwrap();
    let handler = ResourceHandler::new(custom.clone(), Growth::Fixed, vec![], DType::Int32, None).unwrap();
    assert_eq!((handler.kind(), handler.unit_bytes()), (&custom, 4));
    assert_eq!(Kind::try_from("ring".to_owned()), Err(HandlerError::KindName("ring".into())));
}
