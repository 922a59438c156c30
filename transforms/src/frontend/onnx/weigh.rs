//! What decoding a model would take, told by walking over its messages without keeping any.

use std::mem::size_of;

use prost::DecodeError;
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use super::proto::{AttributeProto, Dimension, NodeProto, OperatorSetId, TensorProto, ValueInfo};

/// A kind of message, or a text.
#[derive(Clone, Copy)]
pub(super) enum Part {
    Model,
    Opset,
    Graph,
    Node,
    Attribute,
    Tensor,
    ValueInfo,
    Type,
    TensorType,
    Shape,
    Dimension,
    Text,
}

/// What a dimension takes that stands alone: in a list that grows by doubling, and in its copy.
const NUMBER: usize = 24;

/// What a node takes in the graph that is made of it, beside the message.
const IN_THE_GRAPH: usize = 256;

impl Part {
    /// The part in a field, if it is one that is kept.
    fn field(self, tag: u32) -> Option<Self> {
        Some(match (self, tag) {
            (Self::Model, 7) => Self::Graph,
            (Self::Model, 8) => Self::Opset,
            (Self::Graph, 1) => Self::Node,
            (Self::Graph, 5) | (Self::Attribute, 5) => Self::Tensor,
            (Self::Graph, 11..=13) => Self::ValueInfo,
            (Self::Node, 5) => Self::Attribute,
            (Self::ValueInfo, 2) => Self::Type,
            (Self::Type, 1) => Self::TensorType,
            (Self::TensorType, 2) => Self::Shape,
            (Self::Shape, 1) => Self::Dimension,
            (Self::Node, 1..=4 | 7) | (Self::Tensor, 1 | 8) | (Self::Dimension, 2) => Self::Text,
            (Self::Opset | Self::Attribute | Self::ValueInfo, 1) => Self::Text,
            _ => return None,
        })
    }

    /// Bytes of one, twice for those that stand in lists which grow by doubling.
    fn bytes(self, length: usize) -> usize {
        match self {
            Self::Model | Self::Graph | Self::Type | Self::TensorType | Self::Shape => 0,
            Self::Opset => 2 * size_of::<OperatorSetId>(),
            Self::Node => 2 * size_of::<NodeProto>() + IN_THE_GRAPH,
            Self::Attribute => 2 * size_of::<AttributeProto>(),
            Self::Tensor => 2 * size_of::<TensorProto>(),
            Self::ValueInfo => 2 * size_of::<ValueInfo>(),
            Self::Dimension => 2 * size_of::<Dimension>(),
            // With its copies in look-ups and in the graph. A packed list of dimensions takes eight bytes for each.
            Self::Text => 2 * size_of::<String>() + 8 * length,
        }
    }
}

/// Takes what the parts of a message of `length` bytes take from `left`; false where that is too little.
pub(super) fn weigh(part: Part, length: usize, buf: &mut impl Buf, left: &mut usize) -> Result<bool, DecodeError> {
    let end = buf.remaining().saturating_sub(length);
    while buf.remaining() > end {
        let (tag, wire) = decode_key(buf)?;
        let Some(inner) = part.field(tag).filter(|_| wire == WireType::LengthDelimited) else {
            skip_field(wire, tag, buf, DecodeContext::default())?;
            // Dimensions may be stated one by one; other numbers are not kept, or are none of a list.
            let kept = if matches!((part, tag), (Part::Tensor, 1)) { NUMBER } else { 0 };
            match left.checked_sub(kept) {
                Some(less) => *left = less,
                None => return Ok(false),
            }
            continue;
        };
        let length = usize::try_from(decode_varint(buf)?).unwrap_or(usize::MAX).min(buf.remaining());
        match left.checked_sub(inner.bytes(length)) {
            Some(less) => *left = less,
            None => return Ok(false),
        }
        if matches!(inner, Part::Text) {
            buf.advance(length);
        } else if !weigh(inner, length, buf, left)? {
            return Ok(false);
        }
    }
    Ok(true)
}
