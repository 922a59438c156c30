//! What decoding a model takes besides its weights, told by walking over its messages without keeping any.

use cacheplan_files::Limit;
use prost::DecodeError;
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use super::{
    AttributeProto, Dimension, FunctionProto, KeyValue, NodeProto, OnnxError, OperatorSetId, TensorProto, ValueInfo,
};

/// A kind of message, or what one holds.
#[derive(Clone, Copy)]
enum Part {
    Model,
    Graph,
    Function,
    Opset,
    Node,
    Attribute,
    Tensor,
    Pair,
    ValueInfo,
    Type,
    TensorType,
    Shape,
    Dimension,
    Text,
    /// Numbers one behind the other, each in as little as one byte.
    Numbers,
    /// Bytes that stay where they are, or are passed over.
    Bytes,
}

/// What a node takes in the graph that is made of it, beside the message.
const IN_THE_GRAPH: usize = 256;
/// What a whole number takes: in a list that grows by doubling, and in its copy.
const NUMBER: usize = 24;

impl Part {
    /// What is in a field.
    fn field(self, tag: u32) -> Self {
        match (self, tag) {
            (Self::Model, 7) => Self::Graph,
            (Self::Model, 8) | (Self::Function, 9) => Self::Opset,
            (Self::Model, 25) => Self::Function,
            (Self::Graph, 1) | (Self::Function, 7) => Self::Node,
            (Self::Graph, 5) | (Self::Attribute, 5) => Self::Tensor,
            (Self::Graph, 11..=13) => Self::ValueInfo,
            (Self::Node, 5) | (Self::Function, 11) => Self::Attribute,
            (Self::Tensor, 13) => Self::Pair,
            (Self::ValueInfo, 2) => Self::Type,
            (Self::Type, 1) => Self::TensorType,
            (Self::TensorType, 2) => Self::Shape,
            (Self::Shape, 1) => Self::Dimension,
            (Self::Tensor, 1) | (Self::Attribute, 7 | 8) => Self::Numbers,
            (Self::Node, 1..=4 | 7) | (Self::Function, 1 | 4..=6 | 10) | (Self::Pair, 1 | 2) => Self::Text,
            (Self::Model | Self::Graph | Self::Dimension, 2) | (Self::Tensor, 8) => Self::Text,
            (Self::Opset | Self::Attribute | Self::ValueInfo, 1) => Self::Text,
            _ => Self::Bytes,
        }
    }

    /// Bytes of one, twice for those that stand in lists which grow by doubling.
    fn bytes(self, length: usize) -> usize {
        match self {
            Self::Model | Self::Graph | Self::Type | Self::TensorType | Self::Shape | Self::Bytes => 0,
            Self::Function => 2 * size_of::<FunctionProto>(),
            Self::Opset => 2 * size_of::<OperatorSetId>(),
            Self::Node => 2 * size_of::<NodeProto>() + IN_THE_GRAPH,
            Self::Attribute => 2 * size_of::<AttributeProto>(),
            Self::Tensor => 2 * size_of::<TensorProto>() + IN_THE_GRAPH,
            Self::Pair => 2 * size_of::<KeyValue>(),
            Self::ValueInfo => 2 * size_of::<ValueInfo>(),
            Self::Dimension => 2 * size_of::<Dimension>(),
            // With its copies in look-ups and in the graph.
            Self::Text => 2 * size_of::<String>() + 8 * length,
            Self::Numbers => NUMBER * length,
        }
    }

    fn is_message(self) -> bool {
        !matches!(self, Self::Text | Self::Numbers | Self::Bytes)
    }
}

/// Walks over a model, and refuses one that takes more than [`Limit::MEMORY`] when it is decoded.
///
/// # Errors
/// Such a model; bytes that are no message.
pub fn weigh(model: &mut impl Buf) -> Result<(), OnnxError> {
    let mut left = usize::try_from(Limit::MEMORY).unwrap_or(usize::MAX);
    if take(Part::Model, model.remaining(), model, &mut left)? { Ok(()) } else { Err(OnnxError::TooLarge) }
}

/// Takes what the parts of a message of `length` bytes take from `left`; false where that is too little.
fn take(part: Part, length: usize, buf: &mut impl Buf, left: &mut usize) -> Result<bool, DecodeError> {
    let end = buf.remaining().saturating_sub(length);
    while buf.remaining() > end {
        let (tag, wire) = decode_key(buf)?;
        let (inner, length) = if wire == WireType::LengthDelimited {
            (part.field(tag), usize::try_from(decode_varint(buf)?).unwrap_or(usize::MAX).min(buf.remaining()))
        } else {
            skip_field(wire, tag, buf, DecodeContext::default())?;
            // A number that stands alone is one of a list, or has its place in the message.
            (if matches!(part.field(tag), Part::Numbers) { Part::Numbers } else { Part::Bytes }, 1)
        };
        let Some(less) = left.checked_sub(inner.bytes(length)) else { return Ok(false) };
        *left = less;
        if inner.is_message() {
            if !take(inner, length, buf, left)? {
                return Ok(false);
            }
        } else if wire == WireType::LengthDelimited {
            buf.advance(length);
        }
    }
    Ok(true)
}
