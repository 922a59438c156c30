//! Table T3 of AutoDeploy's cache insertion tests, as far as no kernel is needed; `docs/conformance.md` lists the rest.

use cacheplan_handlers::{DType, Kind, ResourceHandler};
use cacheplan_transforms::{
    CacheDTypes, Collected, GraphBuilder, Model, Op, PassContext, PassError,
    layers::{Attention, Mla},
    registry::{Cache, Descriptor},
};
use rstest::rstest;

/// Three layers of attention, with a mask as multimodal models have it.
fn multimodal() -> Model {
    let mut builder = GraphBuilder::new("multimodal", 512, DType::F16);
    for _ in 0..3 {
        builder.layer();
        builder.mask().attention(&Attention::grouped(8, 8, 64));
    }
    builder.build()
}

fn latent(kv_lora_rank: u64, qk_rope_head_dim: u64) -> Model {
    let mut builder = GraphBuilder::new("latent", 512, DType::Bf16);
    builder.layer();
    builder.mla(&Mla {
        num_heads: 8,
        q_lora_rank: None,
        kv_lora_rank,
        qk_nope_head_dim: 128,
        qk_rope_head_dim,
        v_head_dim: 128,
        window: None,
        cache_dtype: None,
        shares_layer: None,
    });
    builder.build()
}

fn eight_heads() -> Model {
    let mut builder = GraphBuilder::new("eight_heads", 512, DType::F16);
    builder.layer();
    builder.attention(&Attention::grouped(8, 8, 64));
    builder.build()
}

fn ops_of(model: &Model, kind: &str) -> usize {
    model.graph.op_ids().filter(|&id| model.graph.op(id).kind == kind).count()
}

/// What a framework registers whose attention kernels take masks.
fn kernels_with_masks() -> PassContext {
    let attention = PassContext::default().registry.get(Op::ATTENTION).unwrap().clone();
    let mut context = PassContext::default();
    context.registry.register(attention.taking_masks());
    context
}

fn matched(collected: &Collected, pass: &str) -> usize {
    collected.reports.iter().find(|report| report.pass == pass).unwrap().matched.len()
}

#[test]
fn row_2_a_multimodal_model_has_one_mask_for_all_layers() {
    let model = multimodal();
    assert_eq!(ops_of(&model, Op::MASK), 1);
    let readers = model.graph.op_ids().filter(|&id| model.graph.op(id).port("mask").is_some());
    assert_eq!(readers.count(), 3);
}

#[test]
fn rows_3_and_4_kernels_that_take_masks_get_the_prepared_one_last() {
    let mut model = multimodal();
    let collected = model.graph.collect(&kernels_with_masks()).unwrap();
    assert_eq!(matched(&collected, "prepare_masks"), 3);
    assert_eq!(ops_of(&model, Op::MASK), 1, "one for all layers");
    for id in model.graph.op_ids().filter(|&id| model.graph.op(id).kind == Op::ATTENTION) {
        let ports: Vec<&str> = model.graph.op(id).inputs.iter().map(|(port, _)| port.as_ref()).collect();
        let cache = model.graph.op(id).caches[0].as_str();
        assert_eq!(ports, ["query", "key", "value", cache, "mask"]);
        let edges = model.graph.petgraph().edges_directed(id, petgraph::Direction::Incoming);
        assert!(edges.into_iter().all(|edge| model.graph.op(id).inputs[edge.weight().input].1 == edge.weight().tensor));
    }
}

#[test]
fn row_5_kernels_without_masks_refuse_and_name_those_that_take_them() {
    let mut context = PassContext::default();
    let derive = |_: &mut cacheplan_transforms::registry::OpView<'_>| Ok(Vec::new());
    context.registry.register(Descriptor::new("acme.attention", derive).taking_masks());
    let error = multimodal().graph.collect(&context).unwrap_err();
    assert!(matches!(&error, PassError::Mask { .. }));
    let text = error.to_string();
    assert!(
        text.contains("`layers.0.attention` (core.attention)") && text.ends_with("one of: acme.attention"),
        "{text}"
    );
}

/// Rows 7 and 8 are rows of the resize, which the planner's `autodeploy.rs` holds.
#[test]
fn row_6_initialisation_is_not_skipped() {
    let collected = eight_heads().graph.collect(&PassContext::default()).unwrap();
    assert_eq!(matched(&collected, "initialize_caches"), 1);
}

#[test]
fn row_9_insertion_registers_a_paged_resource() {
    let collected = eight_heads().graph.collect(&PassContext::default()).unwrap();
    let resource = collected.resources.iter().next().unwrap();
    assert!(resource.name.starts_with("kv_cache") && resource.handler.is_paged());
}

#[test]
fn row_10_a_stated_dtype_holds_for_every_handler() {
    let dtypes = CacheDTypes { kv: Some(DType::Bf16), ..CacheDTypes::default() };
    let collected = eight_heads().graph.collect(&PassContext { dtypes, ..PassContext::default() }).unwrap();
    assert!(collected.resources.iter().all(|resource| resource.handler.dtype() == DType::Bf16));
}

/// Upstream the sizes and the device choose a kernel, and the kernel chooses the cache. Here one kind of cache serves all.
#[rstest]
#[case::row_11(512, 64)]
#[case::row_12(256, 64)]
fn a_latent_cache_is_of_one_kind_whatever_kernel_its_sizes_suit(#[case] rank: u64, #[case] rope: u64) {
    let collected = latent(rank, rope).graph.collect(&PassContext::default()).unwrap();
    let handler = &collected.resources.get("ckv_cache_0").unwrap().handler;
    assert_eq!((handler.kind(), handler.unit_bytes()), (&Kind::MlaPaged, (rank + rope) * 2));
}

/// Two caches, one for latents and one for rope keys, as a kernel may want them.
#[test]
fn row_13_a_requested_kernel_is_kept_with_the_caches_that_it_wants() {
    let mut context = PassContext::default();
    context.registry.register(Descriptor::new(Op::MLA, |op| {
        let cache = |suffix: &'static str, handler| Cache { suffix: suffix.into(), handler };
        let (rank, rope) = (op.dim("kv_lora_rank", "latent", 2)?, op.dim("qk_rope_head_dim", "rope_key", 2)?);
        let dtype = op.kv_dtype("latent")?;
        Ok(vec![
            cache("ckv_cache", ResourceHandler::mla_paged(rank, 0, dtype)?),
            cache("kpe_cache", ResourceHandler::mla_paged(rope, 0, dtype)?),
        ])
    }));
    let collected = latent(512, 64).graph.collect(&context).unwrap();
    let bytes: Vec<_> = collected.resources.iter().map(|r| (r.name.as_str(), r.handler.unit_bytes())).collect();
    assert_eq!(bytes, [("ckv_cache_0", 1024), ("kpe_cache_0", 128)]);
}
