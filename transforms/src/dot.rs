//! Graphviz text of a graph; caches and the ops that read them stand out.

use std::fmt::{self, Display, Formatter};

use cacheplan_files::Shown;
use petgraph::visit::EdgeRef;

use crate::graph::{Graph, Op, Tensor};

impl Graph {
    /// The graph in DOT.
    pub fn dot(&self) -> impl Display {
        Dot(self)
    }
}

struct Dot<'a>(&'a Graph);

impl Display for Dot<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let graph = self.0;
        writeln!(f, "digraph model {{\n  rankdir=TB;\n  node [shape=box, fontname=\"sans-serif\"];")?;
        for id in graph.op_ids() {
            let op = graph.op(id);
            let style = if op.kind == Op::CACHE {
                ", shape=cylinder, style=filled, fillcolor=lightblue"
            } else if op.caches.is_empty() {
                ""
            } else {
                ", style=\"filled,bold\", fillcolor=gold"
            };
            let label = quoted(&format!("{}\n{}", Shown(&op.name), Shown(&op.kind)));
            writeln!(f, "  n{} [label={label}{style}];", id.index())?;
        }
        for edge in graph.petgraph().edge_references() {
            let (from, to) = (edge.source().index(), edge.target().index());
            let label = quoted(&Shown(tensor_text(graph.tensor(edge.weight().tensor))).to_string());
            writeln!(f, "  n{from} -> n{to} [label={label}];")?;
        }
        f.write_str("}\n")
    }
}

/// A string of Graphviz, in which only quotes, backslashes and line ends are escaped.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

fn tensor_text(tensor: &Tensor) -> String {
    let shape: Vec<String> = tensor.shape.iter().map(ToString::to_string).collect();
    format!("[{}] {}", shape.join(", "), tensor.dtype)
}
