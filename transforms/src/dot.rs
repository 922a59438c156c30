//! Graphviz text of a graph; caches and the ops that read them stand out, and layers that repeat are drawn once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter, Write};

use cacheplan_files::Shown;
use petgraph::visit::EdgeRef;

use crate::graph::{Attribute, Graph, Op, OpId, Tensor, TensorOrigin};

/// Layers that follow each other so many at a time are looked for: known models have patterns of up to a dozen.
const LONGEST_PATTERN: usize = 16;

impl Graph {
    /// The graph in DOT. Layers that are equal but for their place, or that repeat a pattern, are one cluster, which says how
    /// often.
    pub fn dot(&self) -> impl Display {
        Dot { graph: self, layers: Layers::of(self) }
    }
}

struct Dot<'a> {
    graph: &'a Graph,
    layers: Layers,
}

impl Display for Dot<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "digraph model {{\n  rankdir=TB;\n  node [shape=box, fontname=\"sans-serif\"];")?;
        let outside = self.graph.op_ids().filter(|id| self.layers.home[id.index()].is_none());
        outside.into_iter().try_for_each(|id| self.node(f, id))?;
        for run in &self.layers.runs {
            let (first, last) = (self.layers.numbers[run.first], self.layers.numbers[run.first + run.length() - 1]);
            let title = match run.times {
                1 => format!("layer {first}"),
                times => format!("× {times}, layers {first} to {last}"),
            };
            writeln!(f, "  subgraph cluster_{first} {{\n  label={};", quoted(&title))?;
            for id in self.layers.ops[run.first..run.first + run.pattern].iter().flatten() {
                self.node(f, *id)?;
            }
            writeln!(f, "  }}")?;
        }
        // Edges of layers that are not drawn are those of the layers that stand for them.
        let mut drawn = BTreeSet::new();
        for edge in self.graph.petgraph().edge_references() {
            let Some((from, to)) = self.layers.shown(edge.source(), edge.target()) else { continue };
            let text = tensor_text(self.graph.tensor(edge.weight().tensor));
            if drawn.insert((from, to, text.clone())) {
                writeln!(f, "  n{} -> n{} [label={}];", from.index(), to.index(), quoted(&Shown(text).to_string()))?;
            }
        }
        f.write_str("}\n")
    }
}

impl Dot<'_> {
    fn node(&self, f: &mut Formatter<'_>, id: OpId) -> fmt::Result {
        let op = self.graph.op(id);
        let style = if op.kind == Op::CACHE {
            ", shape=cylinder, style=filled, fillcolor=lightblue"
        } else if op.caches.is_empty() {
            ""
        } else {
            ", style=\"filled,bold\", fillcolor=gold"
        };
        let label = quoted(&format!("{}\n{}", Shown(&op.name), Shown(&op.kind)));
        writeln!(f, "  n{} [label={label}{style}];", id.index())
    }
}

/// The ops of each layer, and which layers repeat.
struct Layers {
    /// The layer's number of each, ascending.
    numbers: Vec<u32>,
    ops: Vec<Vec<OpId>>,
    /// For each op its index into `ops` and its place there; `None` outside the layers.
    home: Vec<Option<(usize, usize)>>,
    runs: Vec<Run>,
}

/// Layers that are a pattern so many times.
struct Run {
    /// Index of the first.
    first: usize,
    /// Layers of the pattern.
    pattern: usize,
    times: usize,
}

impl Run {
    const fn length(&self) -> usize {
        self.pattern * self.times
    }
}

impl Layers {
    fn of(graph: &Graph) -> Self {
        let mut of_layer: BTreeMap<u32, Vec<OpId>> = BTreeMap::new();
        for id in graph.op_ids() {
            // A cache is in the first layer that reads it.
            let readers = || graph.petgraph().neighbors(id).filter_map(|reader| graph.op(reader).name.layer).min();
            let op = graph.op(id);
            let layer = op.name.layer.or_else(|| readers().filter(|_| op.kind == Op::CACHE));
            if let Some(layer) = layer {
                of_layer.entry(layer).or_default().push(id);
            }
        }
        let mut home = vec![None; graph.petgraph().node_count()];
        for (index, ops) in of_layer.values().enumerate() {
            for (place, id) in ops.iter().enumerate() {
                home[id.index()] = Some((index, place));
            }
        }
        let (numbers, ops): (Vec<u32>, Vec<Vec<OpId>>) = of_layer.into_iter().unzip();
        let kinds: Vec<String> = ops.iter().map(|ops| kind(graph, ops, &home)).collect();
        Self { numbers, ops, home, runs: runs(&kinds) }
    }

    /// The ops that stand for two; `None` between repetitions, which a cluster's title tells.
    fn shown(&self, from: OpId, to: OpId) -> Option<(OpId, OpId)> {
        let (from, to) = (self.stands_for(from), self.stands_for(to));
        let one_run = from.1.zip(to.1).is_some_and(|((run, time), (other, later))| run == other && time != later);
        (!one_run).then_some((from.0, to.0))
    }

    /// The op that is drawn for one, and the run and the repetition that it is in.
    fn stands_for(&self, id: OpId) -> (OpId, Option<(usize, usize)>) {
        let Some((layer, place)) = self.home[id.index()] else { return (id, None) };
        let run = self.runs.partition_point(|run| run.first <= layer) - 1;
        let Run { first, pattern, .. } = self.runs[run];
        let behind = layer - first;
        (self.ops[first + behind % pattern][place], Some((run, behind / pattern)))
    }
}

/// What layers have in common that look alike: their ops, and what these read, but for where the residual stream comes from.
fn kind(graph: &Graph, ops: &[OpId], home: &[Option<(usize, usize)>]) -> String {
    let mut kind = String::new();
    let here = ops.first().and_then(|id| home[id.index()]).map(|(layer, _)| layer);
    for id in ops {
        let op = graph.op(*id);
        let name = if op.kind == Op::CACHE { "" } else { &*op.name.part };
        let _ = write!(kind, "{name:?} {:?} {}", op.kind, op.caches.len());
        for attribute in op.attributes.iter().filter(|(name, _)| name != Attribute::SHARES_LAYER) {
            let _ = write!(kind, " {attribute:?}");
        }
        for (port, tensor) in &op.inputs {
            let tensor = graph.tensor(*tensor);
            let source = match tensor.origin {
                TensorOrigin::Op(source) => Some(source),
                TensorOrigin::Input | TensorOrigin::Parameter => None,
            };
            let cache = source.filter(|source| graph.op(*source).kind == Op::CACHE);
            // A cache's port has its name, which no two layers share.
            let port = if cache.is_some() { "" } else { port };
            let _ = write!(kind, " {port:?} {}", tensor_text(tensor));
            match (source.and_then(|source| home[source.index()]), cache) {
                (Some((layer, place)), _) if Some(layer) == here => write!(kind, " here {place}"),
                (_, Some(cache)) => write!(kind, " cache {}", cache.index()),
                _ => Ok(()),
            }
            .unwrap_or_default();
        }
        for tensor in &op.outputs {
            let _ = write!(kind, " makes {}", tensor_text(graph.tensor(*tensor)));
        }
        kind.push('\n');
    }
    kind
}

/// From the first layer on, the pattern that saves most layers at each place.
fn runs(kinds: &[String]) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut first = 0;
    while first < kinds.len() {
        let rest = &kinds[first..];
        let times = |pattern: usize| rest.chunks_exact(pattern).take_while(|chunk| *chunk == &rest[..pattern]).count();
        let saved = |pattern: &usize| ((times(*pattern) - 1) * pattern, usize::MAX - pattern);
        let pattern = (1..=LONGEST_PATTERN.min(rest.len())).max_by_key(saved).unwrap_or(1);
        let run = Run { first, pattern, times: times(pattern) };
        first += run.length();
        runs.push(run);
    }
    runs
}

/// A string of Graphviz, in which only quotes, backslashes and line ends are escaped.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

fn tensor_text(tensor: &Tensor) -> String {
    let shape: Vec<String> = tensor.shape.iter().map(ToString::to_string).collect();
    format!("[{}] {}", shape.join(", "), tensor.dtype)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("", &[])]
    #[case("a", &[(1, 1)])]
    #[case("aaaa", &[(1, 4)])]
    #[case("aab", &[(1, 2), (1, 1)])]
    #[case("abababb", &[(2, 3), (1, 1)])]
    #[case("xaabaabaab", &[(1, 1), (3, 3)])]
    fn layers_that_repeat_are_one_run(#[case] layers: &str, #[case] expected: &[(usize, usize)]) {
        let kinds: Vec<String> = layers.chars().map(String::from).collect();
        let found: Vec<(usize, usize)> = runs(&kinds).iter().map(|run| (run.pattern, run.times)).collect();
        assert_eq!(found, expected);
    }
}
