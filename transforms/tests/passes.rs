//! Passes walk graphs, in order, and say what they did.

mod support;

use cacheplan_handlers::{DType, DecayKind, Kind, ResourceHandler};
use cacheplan_transforms::{
    Collected, GraphBuilder, Model, Op, PassContext, PassError, ReadOptions,
    layers::{Attention, FeedForward, Mamba2},
    registry::{Cache, Descriptor},
};

const MAMBA: Mamba2 = Mamba2 { num_heads: 8, head_dim: 16, d_state: 16, n_groups: 2, d_conv: 4, state_dtype: None };

/// A model with one attention block per entry: its window and the layer it shares with.
fn attentions(layers: &[(Option<u64>, Option<u32>)]) -> Model {
    let mut builder = GraphBuilder::new("test", 512, DType::F16);
    for &(window, shares_layer) in layers {
        builder.layer();
        builder.attention(&Attention { window, shares_layer, ..Attention::grouped(8, 8, 64) });
        builder.feed_forward(&FeedForward {
            intermediate_size: 64,
            matrices: 3,
            experts: 0,
            experts_per_token: 0,
            shared_size: 0,
            latent_size: None,
        });
    }
    builder.build()
}

fn hybrid() -> Model {
    let mut builder = GraphBuilder::new("test", 64, DType::Bf16);
    builder.layer();
    builder.mamba2(&MAMBA);
    builder.layer();
    builder.attention(&Attention::grouped(4, 2, 16));
    builder.build()
}

fn run(mut model: Model, context: &PassContext) -> Result<Collected, PassError> {
    model.graph.collect(context)
}

#[test]
fn the_passes_run_in_their_order() {
    let names: Vec<&str> = run(hybrid(), &PassContext::default()).unwrap().reports.iter().map(|r| r.pass).collect();
    let expected = [
        "insert_cached_attention",
        "insert_cached_mla",
        "insert_cached_ssm",
        "insert_cached_causal_conv",
        "insert_custom_caches",
        "alias_shared_kv",
        "initialize_caches",
        "prepare_masks",
        "verify_caches",
    ];
    assert_eq!(names, expected);
}

#[test]
fn insertion_registers_paged_resources_named_by_layer() {
    let collected = run(attentions(&[(None, None)]), &PassContext::default()).unwrap();
    let resource = collected.resources.iter().next().unwrap();
    assert_eq!(resource.name, "kv_cache_0");
    assert!(resource.handler.is_paged());
    assert_eq!(resource.provenance[0], "num_kv_heads = 8 (tensor layers.0.attention.key, axis 2)");
}

#[test]
fn initialisation_makes_a_node_for_every_resource_as_long_as_its_blocks_or_slots() {
    let mut model = hybrid();
    let collected = model.graph.collect(&PassContext::default()).unwrap();
    assert_eq!(collected.report("initialize_caches").unwrap().matched.len(), 3);
    let nodes = model.graph.op_ids().map(|id| model.graph.op(id)).filter(|op| op.kind == Op::CACHE);
    let units: Vec<_> =
        nodes.map(|op| (op.name.to_string(), model.graph.tensor(op.outputs[0]).shape[0].to_string())).collect();
    let expected = [("kv_cache_1", "blocks"), ("ssm_state_0", "slots"), ("conv_state_0", "slots")];
    assert_eq!(units, expected.map(|(name, unit)| (name.to_owned(), unit.to_owned())));
}

#[test]
fn layers_that_share_keys_have_one_cache() {
    let layers = [(None, None), (Some(32), None), (None, Some(0)), (Some(32), Some(1)), (Some(16), Some(1))];
    let collected = run(attentions(&layers), &PassContext::default()).unwrap();
    let shared: Vec<_> = collected.resources.iter().map(|r| (r.name.as_str(), r.shared_by.clone())).collect();
    assert_eq!(shared, [("kv_cache_0", vec![2]), ("kv_cache_1", vec![3, 4])]);
    let skipped = &collected.report("insert_cached_attention").unwrap().skipped;
    assert_eq!(skipped.len(), 3);
    assert!(skipped.iter().all(|skipped| skipped.reason == "it reads what is cached elsewhere"));
}

#[test]
fn a_layer_cannot_share_a_cache_that_forgets_what_it_needs() {
    let error = run(attentions(&[(Some(32), None), (None, Some(0))]), &PassContext::default()).unwrap_err();
    assert!(matches!(&error, PassError::Alias { .. }));
    let text = error.to_string();
    assert!(text.contains("`layers.1.attention` cannot share the cache of `layers.0.attention`"), "{text}");
    assert!(text.contains("every token") && text.contains("32 tokens"), "{text}");
}

/// A framework's op: a decaying average per sequence, and features per token.
fn acme() -> Model {
    let mut builder = GraphBuilder::new("test", 64, DType::Bf16);
    builder.layer();
    builder.custom("retention", "acme.retention", &[("decay", &[4, 8])]);
    builder.build()
}

#[test]
fn a_framework_registers_state_and_unpaged_resources_for_its_own_op() {
    let mut context = PassContext::default();
    context.registry.register(Descriptor::new("acme.retention", |op| {
        let (heads, width) = (op.dim("heads", "decay", 2)?, op.dim("width", "decay", 3)?);
        let average = ResourceHandler::state(&[heads, width], op.state_dtype()?)?;
        let features = ResourceHandler::unpaged(&[width], op.dtype("x")?)?;
        let cache = |suffix: &'static str, handler| Cache { suffix: suffix.into(), handler };
        Ok(vec![cache("average", average), cache("features", features)])
    }));
    let collected = run(acme(), &context).unwrap();
    let kinds: Vec<_> = collected.resources.iter().map(|r| (r.name.as_str(), r.handler.kind().clone())).collect();
    assert_eq!(kinds, [("average_0", Kind::State), ("features_0", Kind::Unpaged)]);
}

#[test]
fn an_op_that_keeps_state_and_that_no_descriptor_knows_is_an_error() {
    let error = run(acme(), &PassContext::default()).unwrap_err();
    assert!(matches!(&error, PassError::NoDescriptor { .. }));
    assert!(error.to_string().contains("`acme.retention`") && error.to_string().contains("register one"), "{error}");
}

#[test]
fn a_dimension_known_only_at_run_time_is_an_error_that_names_it() {
    let mut context = PassContext::default();
    context.registry.register(Descriptor::new("acme.retention", |op| op.dim("tokens", "x", 1).map(|_| Vec::new())));
    let text = run(acme(), &context).unwrap_err().to_string();
    assert!(text.contains("tokens cannot be told: axis 1 of input `x` is the symbol `sequence`"), "{text}");
}

#[test]
fn two_caches_of_one_name_are_an_error() {
    let mut context = PassContext::default();
    context.registry.register(Descriptor::new("acme.retention", |_| {
        let handler = ResourceHandler::state(&[1], DType::F32)?;
        Ok(vec![Cache { suffix: "twice".into(), handler: handler.clone() }, Cache { suffix: "twice".into(), handler }])
    }));
    assert!(matches!(run(acme(), &context), Err(PassError::Resource { .. })));
}

#[test]
fn a_convolution_of_width_one_keeps_nothing() {
    let mut builder = GraphBuilder::new("test", 64, DType::Bf16);
    builder.layer();
    builder.mamba2(&Mamba2 { d_conv: 1, ..MAMBA });
    let collected = run(builder.build(), &PassContext::default()).unwrap();
    assert_eq!(support::count(&collected.resources, &Kind::CausalConv), 0);
    assert_eq!(collected.report("insert_cached_causal_conv").unwrap().skipped.len(), 1);
}

#[test]
fn a_graph_is_walked_once() {
    let mut model = hybrid();
    model.graph.collect(&PassContext::default()).unwrap();
    assert!(matches!(model.graph.collect(&PassContext::default()), Err(PassError::Walked { .. })));
}

#[test]
fn dot_makes_caches_and_their_readers_stand_out() {
    let mut model = hybrid();
    model.graph.collect(&PassContext::default()).unwrap();
    let dot = model.graph.dot().to_string();
    assert_eq!(dot.matches("fillcolor=lightblue").count(), 3);
    assert_eq!(dot.matches("fillcolor=gold").count(), 3);
    assert!(dot.starts_with("digraph") && dot.ends_with("}\n"));
}

/// One that nobody can look at is no picture: the largest model has thousands of ops.
#[test]
fn graphs_of_the_whole_zoo_have_few_nodes_since_layers_that_repeat_are_drawn_once() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/configs");
    let mut drawn = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let Ok(mut model) = Model::read(&path, &ReadOptions::default()) else { continue };
        if model.graph.collect(&PassContext::default()).is_err() {
            continue;
        }
        let dot = model.graph.dot().to_string();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let nodes = dot.lines().filter(|line| line.contains(" [label=") && !line.contains(" -> ")).count();
        assert!(nodes <= 220, "{name}: {nodes} nodes");
        // Clusters follow each other, each layer in one of them.
        let mut free = 0;
        for title in dot.lines().filter_map(|line| line.trim().strip_prefix("label=\"")) {
            let (first, last) = layers_of(title);
            assert!((free..=last).contains(&first), "{name}: {title}");
            free = last + 1;
        }
        assert!((1..=model.info.layers).contains(&free), "{name}: {free}");
        drawn += 1;
    }
    assert!(drawn > 60, "{drawn} graphs");
}

/// The first and the last of `layer 3"`, or of `× 7, layers 4 to 17"`.
fn layers_of(title: &str) -> (u32, u32) {
    let words = title.split(|letter: char| !letter.is_ascii_digit());
    let numbers: Vec<u32> = words.filter_map(|number| number.parse().ok()).collect();
    match numbers[..] {
        [_, first, last] => (first, last),
        _ => (numbers[0], numbers[0]),
    }
}

/// The boundary that makes new architectures descriptions only.
#[test]
fn front_ends_never_name_a_handler_and_passes_never_see_a_config() {
    let check = |folder: &str, words: &[&str]| {
        let mut open = vec![std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder)];
        let mut files = 0;
        while let Some(path) = open.pop() {
            if path.is_dir() {
                open.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
                continue;
            }
            files += 1;
            let text = std::fs::read_to_string(&path).unwrap();
            for word in words {
                assert!(!text.contains(word), "{} names {word}", path.display());
            }
        }
        assert!(files > 5);
    };
    check("src/frontend", &["ResourceHandler", "kv_paged", "mla_paged"]);
    check("src/passes", &["serde_json", "frontend", "config::"]);
}

mod any_model {
    use std::collections::BTreeSet;

    use cacheplan_transforms::layers::LinearAttention;
    use proptest::prelude::*;

    use super::*;

    /// A block and how many resources it needs.
    #[derive(Clone, Debug)]
    enum Block {
        Attention { window: Option<u64>, shares: Option<prop::sample::Index> },
        Mamba,
        Delta { d_conv: Option<u64> },
        Convolution { d_conv: u64 },
        FeedForward,
    }

    fn block() -> impl Strategy<Value = Block> {
        prop_oneof![
            (prop::option::of(1..64u64), prop::option::of(any::<prop::sample::Index>()))
                .prop_map(|(window, shares)| Block::Attention { window, shares }),
            Just(Block::Mamba),
            prop::option::of(2..5u64).prop_map(|d_conv| Block::Delta { d_conv }),
            (1..5u64).prop_map(|d_conv| Block::Convolution { d_conv }),
            Just(Block::FeedForward),
        ]
    }

    proptest! {
        #[test]
        fn gets_one_resource_for_each_thing_that_it_keeps(blocks in prop::collection::vec(block(), 0..40)) {
            let mut builder = GraphBuilder::new("any", 64, DType::Bf16);
            let (mut expected, mut owners) = (0, Vec::new());
            for block in &blocks {
                let layer = builder.layer();
                match block {
                    Block::Attention { window, shares } => {
                        let owner = shares.filter(|_| !owners.is_empty()).map(|index| owners[index.index(owners.len())]);
                        // A layer that shares sees what its owner sees.
                        let window = owner.map_or(*window, |(_, window)| window);
                        let shares_layer = owner.map(|(layer, _)| layer);
                        builder.attention(&Attention { window, shares_layer, ..Attention::grouped(4, 2, 16) });
                        if owner.is_none() {
                            owners.push((layer, window));
                            expected += 1;
                        }
                    }
                    Block::Mamba => {
                        builder.mamba2(&MAMBA);
                        expected += 2;
                    }
                    Block::Delta { d_conv } => {
                        let heads = LinearAttention {
                            num_k_heads: 2, num_v_heads: 4, head_k_dim: 8, head_v_dim: 16,
                            delta_rule: true, decay: DecayKind::PerHead, d_conv: *d_conv, state_dtype: None,
                        };
                        builder.linear_attention(&heads);
                        expected += 1 + usize::from(d_conv.is_some());
                    }
                    Block::Convolution { d_conv } => {
                        builder.short_conv(32, *d_conv);
                        expected += usize::from(*d_conv > 1);
                    }
                    Block::FeedForward => {
                        builder.feed_forward(&FeedForward {
                            intermediate_size: 64,
                            matrices: 3,
                            experts: 4,
                            experts_per_token: 2,
                            shared_size: 32,
                            latent_size: None,
                        });
                    }
                }
            }
            let collected = run(builder.build(), &PassContext::default()).unwrap();
            let names: BTreeSet<&str> = collected.resources.iter().map(|resource| resource.name.as_str()).collect();
            prop_assert_eq!(names.len(), expected);
            prop_assert_eq!(collected.resources.len(), expected);
        }
    }
}
