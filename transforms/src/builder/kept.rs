//! Blocks that descriptions state by what they keep: entries for several tokens, rings, states, convolutions.

use cacheplan_handlers::{DType, Ring};

use super::GraphBuilder;
use crate::graph::{Attribute, Op, OpId, TensorId};
use crate::layers::BlockSpec;

/// What an op of a layer caches.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    op: &'static str,
    /// What a description calls the block; empty where a layer has one of the kind.
    part: String,
    /// What is cached; twice the same where it is one tensor.
    pub(super) tensors: [TensorId; 2],
    /// Tokens for which there is one entry.
    stride: u64,
}

/// Entries that stand for some tokens each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entries {
    /// Elements of one.
    pub(crate) width: u64,
    /// Tokens that one stands for.
    pub(crate) stride: u64,
    /// Tokens back of which they are kept; `None` for all.
    pub(crate) window: Option<u64>,
    /// The element type that the model states for them.
    pub(crate) dtype: Option<DType>,
    /// An earlier layer whose entries it reads instead of making its own.
    pub(crate) shares_layer: Option<u32>,
}

impl GraphBuilder {
    /// Whether a layer before the current one has caches of such an op and part.
    pub(crate) fn has(&self, layer: u32, op: &'static str, part: &str) -> bool {
        Some(layer) < self.layer_index() && self.kept_by(Some(layer), op, part).is_some()
    }

    /// Tokens that an entry of a layer stands for.
    pub(crate) fn stride_of(&self, layer: u32, op: &'static str, part: &str) -> Option<u64> {
        self.kept_by(Some(layer), op, part).map(|kept| kept.stride)
    }

    /// Says that blocks added from now on are of the layer's run of that number.
    pub(crate) fn run(&mut self, run: u64) {
        self.run = run;
    }

    pub(super) fn kept_by(&self, layer: Option<u32>, op: &'static str, part: &str) -> Option<&Kept> {
        self.kept.get(layer? as usize)?.iter().find(|kept| kept.op == op && kept.part == part)
    }

    /// Writes down what the current layer caches; what it reads of another counts, for those that read on.
    pub(super) fn keep(&mut self, op: &'static str, part: &str, tensors: [TensorId; 2], stride: u64) {
        if let Some(kept) = self.kept.last_mut() {
            kept.push(Kept { op, part: part.to_owned(), tensors, stride });
        }
    }

    /// Adds the keys by which sparse attention chooses, one for each token or for several.
    pub(crate) fn index_keys(&mut self, dims: &Entries) -> &mut Self {
        let plain = dims.stride == 1 && dims.dtype.is_none() && dims.shares_layer.is_none();
        let spec = BlockSpec::Indexer { index_head_dim: dims.width };
        self.block(if plain { spec } else { BlockSpec::Op(spec.name().to_owned()) });
        let key = match self.kept_by(dims.shares_layer, Op::INDEXER, "") {
            Some(kept) => kept.tensors[0],
            None => {
                let (weight, from) = ("indexer.key_proj.weight", self.hidden_size);
                let projection = self.linear("indexer.key_proj", weight, self.residual, from, dims.width);
                self.channels(projection, "indexer.key", dims.width)
            }
        };
        self.keep(Op::INDEXER, "", [key, key], dims.stride);
        let op = self.op("indexer", Op::INDEXER).input("x", self.residual).input("index_key", key);
        let op = op.maybe(Attribute::STORED_DTYPE, dims.dtype.map(Attribute::DType));
        self.graph.add_op(of_entries(op, dims));
        self
    }

    /// Adds entries that attention reads, of so many heads or of none; what forms them is not described.
    pub(crate) fn entries(&mut self, part: String, heads: u64, dims: &Entries) -> &mut Self {
        self.block(BlockSpec::Op("entries".to_owned()));
        let entry = match self.kept_by(dims.shares_layer, Op::ENTRIES, &part) {
            Some(kept) => kept.tensors[0],
            None => {
                let forms = self.forms(format!("{part}.form"));
                let name = format!("{part}.entry");
                let own = [heads, dims.width];
                self.tensor(forms, name, if heads == 0 { &own[1..] } else { &own })
            }
        };
        self.keep(Op::ENTRIES, &part, [entry, entry], dims.stride);
        let op = self.op(part, Op::ENTRIES).input("entry", entry);
        let op = op.maybe(Attribute::CACHE_DTYPE, dims.dtype.map(Attribute::DType));
        self.graph.add_op(of_entries(op, dims));
        self
    }

    /// Adds the last rows of something, by position, or reads those of an earlier layer; in activations where no dtype is
    /// stated.
    pub(crate) fn ring(
        &mut self,
        part: String,
        ring: Ring,
        width: u64,
        dtype: Option<DType>,
        shares_layer: Option<u32>,
    ) -> &mut Self {
        self.block(BlockSpec::Op("ring".to_owned()));
        let row = match self.kept_by(shares_layer, Op::RING, &part) {
            Some(kept) => kept.tensors[0],
            None => {
                let forms = self.forms(format!("{part}.form"));
                self.tensor_in(forms, format!("{part}.row"), &[width], dtype.unwrap_or(self.dtype))
            }
        };
        self.keep(Op::RING, &part, [row, row], 1);
        let of_ring = vec![ring.behind, ring.unit, u64::from(ring.doubles)];
        let op = self.op(part, Op::RING).input("row", row);
        self.graph.add_op(op.attribute(Attribute::RING, Attribute::Numbers(of_ring)).shared_with(shares_layer));
        self
    }

    /// Adds a state of fixed shape, whole on every rank, or reads that of an earlier layer; in activations where no dtype
    /// is stated.
    pub(crate) fn state(
        &mut self,
        part: String,
        shape: &[u64],
        dtype: Option<DType>,
        shares_layer: Option<u32>,
    ) -> &mut Self {
        self.block(BlockSpec::Op("state".to_owned()));
        let state = match self.kept_by(shares_layer, Op::STATE, &part) {
            Some(kept) => kept.tensors[0],
            None => {
                let forms = self.forms(format!("{part}.form"));
                let leading = std::iter::once(crate::graph::Extent::BATCH);
                let shape = leading.chain(shape.iter().map(|&size| size.into())).collect();
                let (name, dtype) = (self.name(format!("{part}.state")), dtype.unwrap_or(self.dtype));
                self.graph.add_output(forms, name, shape, dtype)
            }
        };
        self.keep(Op::STATE, &part, [state, state], 1);
        let op = self.op(part, Op::STATE).input("state", state);
        self.graph.add_op(op.shared_with(shares_layer));
        self
    }

    /// Adds a convolution over channels of the layer: those of so many key heads, or whole on every rank where there are
    /// none. The kernel is so many tokens wide, with so many tokens from one to the next.
    pub(crate) fn conv(
        &mut self,
        part: String,
        channels: u64,
        (d_conv, dilation): (u64, u64),
        heads: u64,
        dtype: Option<DType>,
    ) -> &mut Self {
        self.block(BlockSpec::Op("conv".to_owned()));
        let forms = self.forms(format!("{part}.form"));
        let x = self.tensor_in(forms, format!("{part}.x"), &[channels], dtype.unwrap_or(self.dtype));
        let name = crate::graph::Name::new(self.layer_index(), format!("{part}.weight"));
        let weight = self.graph.add_parameter(name, &[channels, d_conv], self.dtype);
        let mut op = self.op(part, Op::CAUSAL_CONV).input("x", x).input("weight", weight);
        op = op.attribute(Attribute::KEY_HEADS, Attribute::Number(heads));
        op = op.attribute(Attribute::DILATION, Attribute::Number(dilation));
        self.graph.add_op(op.maybe(Attribute::STORED_DTYPE, dtype.map(Attribute::DType)));
        self
    }

    /// Adds a table of which a step reads a few rows, in the dtype of activations where none is stated.
    pub(crate) fn table(&mut self, rows: u64, width: u64, dtype: Option<DType>) -> &mut Self {
        self.block(BlockSpec::Op("table".to_owned()));
        self.parameter_in("ngram.table", &[rows, width], dtype.unwrap_or(self.dtype));
        self
    }

    /// An op that makes what is kept out of the residual stream; its weights are counted elsewhere.
    fn forms(&mut self, part: impl Into<std::borrow::Cow<'static, str>>) -> OpId {
        let op = self.op(part, Op::LINEAR).input("x", self.residual);
        self.graph.add_op(op)
    }
}

/// The op with what no shape tells of entries.
fn of_entries(op: Op, dims: &Entries) -> Op {
    let ratio = Some(dims.stride).filter(|stride| *stride != 1);
    let op = op.maybe(Attribute::RATIO, ratio.map(Attribute::Number));
    op.maybe(Attribute::WINDOW, dims.window.map(Attribute::Number)).shared_with(dims.shares_layer)
}
