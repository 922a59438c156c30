//! The pools' contents in the form in which Hugging Face keeps its caches.

use cacheplan_handlers::Kind;
use cacheplan_managers::book::SequenceId;
use candle_core::{DType, Tensor};

use crate::harness::{Driven, Golden, assert_close};

/// Compares every cache that the golden file has under `prefix` with the sequence's own.
///
/// `layer_of` reads a name behind the prefix as a layer and the name of its part.
pub(crate) fn assert_caches_match(
    driven: &mut Driven,
    sequence: SequenceId,
    golden: &Golden,
    prefix: &str,
    layer_of: fn(&str) -> (u32, &str),
) {
    let names: Vec<&str> = golden.names().filter(|name| name.starts_with(prefix)).collect();
    assert!(!names.is_empty(), "the golden file has nothing under `{prefix}`");
    for name in names {
        let (layer, part) = layer_of(&name[prefix.len()..]);
        let theirs = golden.get(name);
        match part {
            "conv0" | "conv_states.0" => {
                let ours = state(driven, sequence, layer, &Kind::CausalConv).squeeze(2).unwrap().t().unwrap();
                // Theirs is as wide as the convolution; its oldest column is never read again.
                let width = ours.dim(1).unwrap();
                let theirs = theirs.narrow(1, theirs.dim(1).unwrap() - width, width).unwrap();
                assert_close(&ours.contiguous().unwrap(), &theirs.contiguous().unwrap(), name);
            }
            "rec0" | "recurrent_states.0" => {
                let ours = state(driven, sequence, layer, &Kind::Ssm).reshape(theirs.dims()).unwrap();
                assert_close(&ours, &theirs, name);
            }
            "conv1" => {
                let ours =
                    state_called(driven, sequence, &format!("ngram_conv_{layer}")).squeeze(2).unwrap().t().unwrap();
                assert_close(&ours.contiguous().unwrap(), &theirs, name);
            }
            "conv2" => {
                let ours = state_called(driven, sequence, &format!("ngram_context_{layer}")).flatten_all().unwrap();
                let ids = |tensor: &Tensor| tensor.to_dtype(DType::U32).unwrap().to_vec1::<u32>().unwrap();
                assert_eq!(ids(&ours), ids(&theirs), "{name}");
            }
            "index_keys" => {
                let caches = driven.caches();
                let dense = caches.read_kv(sequence, caches.route(layer, &Kind::IndexKey).unwrap()).unwrap();
                // Behind the keys of full entries may be a place for one that is not.
                let ours = dense.keys.squeeze(1).unwrap().narrow(0, 0, theirs.dim(0).unwrap()).unwrap();
                assert_close(&ours.contiguous().unwrap(), &theirs, name);
            }
            "index_rows" => {
                let ours = state(driven, sequence, layer, &Kind::Ring).squeeze(2).unwrap();
                let (rows, width) = ours.dims2().unwrap();
                let tokens = theirs.dim(0).unwrap();
                // Those of the entry in the making; theirs have a mark of padding behind them.
                for position in tokens / rows * rows..tokens {
                    let theirs = theirs.get(position).unwrap().narrow(0, 0, width).unwrap();
                    assert_close(&ours.get(position % rows).unwrap(), &theirs, name);
                }
            }
            "k" | "keys" => assert_rows_match(&kv(driven, sequence, layer).0, &theirs, name),
            "v" | "values" => assert_rows_match(&kv(driven, sequence, layer).1, &theirs, name),
            other => panic!("`{name}`: no cache is called `{other}`"),
        }
    }
}

/// `{prefill,decodeN,chunk1}/layer{i}/{part}` behind its first part.
pub(crate) fn by_slash(name: &str) -> (u32, &str) {
    let (layer, part) = name.strip_prefix("layer").and_then(|rest| rest.split_once('/')).unwrap();
    (layer.parse().unwrap(), part)
}

/// `{short,long}.cache.{i}.{part}` behind `cache.`.
pub(crate) fn by_dot(name: &str) -> (u32, &str) {
    let (layer, part) = name.split_once('.').unwrap();
    (layer.parse().unwrap(), part)
}

/// Compares the tokens that both still have: a window may have let the older ones go.
fn assert_rows_match(ours: &Tensor, theirs: &Tensor, name: &str) {
    let tokens = ours.dim(1).unwrap().min(theirs.dim(1).unwrap());
    let last = |tensor: &Tensor| tensor.narrow(1, tensor.dim(1).unwrap() - tokens, tokens).unwrap();
    assert_close(&last(ours).contiguous().unwrap(), &last(theirs).contiguous().unwrap(), name);
}

fn state_called(driven: &mut Driven, sequence: SequenceId, name: &str) -> Tensor {
    let caches = driven.caches();
    caches.read_state(sequence, caches.route_of(name).unwrap()).unwrap()
}

fn state(driven: &mut Driven, sequence: SequenceId, layer: u32, kind: &Kind) -> Tensor {
    let caches = driven.caches();
    caches.read_state(sequence, caches.route(layer, kind).unwrap()).unwrap()
}

/// `[heads, tokens, dim]` keys and values; of a latent layer the latent and the rope key.
fn kv(driven: &mut Driven, sequence: SequenceId, layer: u32) -> (Tensor, Tensor) {
    let caches = driven.caches();
    let heads_first = |tensor: &Tensor| tensor.transpose(0, 1).unwrap().contiguous().unwrap();
    if let Ok(route) = caches.route(layer, &Kind::KvPaged) {
        let dense = caches.read_kv(sequence, route).unwrap();
        return (heads_first(&dense.keys), heads_first(&dense.values.unwrap()));
    }
    let dense = caches.read_kv(sequence, caches.route(layer, &Kind::MlaPaged).unwrap()).unwrap();
    let both = heads_first(&dense.keys);
    let latent = 32;
    let rope = both.dim(2).unwrap() - latent;
    (both.narrow(2, 0, latent).unwrap(), both.narrow(2, latent, rope).unwrap())
}
