//! The part of ONNX's messages that is read: names, shapes, attributes and single numbers. Weights are skipped.

use prost::bytes::{Buf, BufMut};
use prost::encoding::{self, DecodeContext, WireType};
use prost::{DecodeError, Message};

#[derive(Clone, PartialEq, Message)]
pub(super) struct ModelProto {
    #[prost(message, optional, tag = "7")]
    pub(super) graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    pub(super) opset_import: Vec<OperatorSetId>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OperatorSetId {
    #[prost(string, tag = "1")]
    pub(super) domain: String,
    #[prost(int64, tag = "2")]
    pub(super) version: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    pub(super) node: Vec<NodeProto>,
    #[prost(message, repeated, tag = "5")]
    pub(super) initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub(super) input: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    pub(super) output: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "13")]
    pub(super) value_info: Vec<ValueInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    pub(super) input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(super) output: Vec<String>,
    #[prost(string, tag = "3")]
    pub(super) name: String,
    #[prost(string, tag = "4")]
    pub(super) op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub(super) attribute: Vec<AttributeProto>,
    #[prost(string, tag = "7")]
    pub(super) domain: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AttributeProto {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(int64, optional, tag = "3")]
    pub(super) i: Option<i64>,
    #[prost(message, optional, tag = "5")]
    pub(super) t: Option<TensorProto>,
}

/// A weight or a constant. Its data is kept only if that is one number: everything longer is jumped over.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TensorProto {
    pub(super) dims: Vec<i64>,
    pub(super) data_type: i32,
    pub(super) name: String,
    /// The bytes of its data, if they are at most eight.
    raw: Vec<u8>,
    /// Its data where that is stated as numbers.
    number: Option<i64>,
}

impl TensorProto {
    /// The number that it holds, if it is one whole number.
    pub(super) fn whole_number(&self) -> Option<i64> {
        let bytes = self.raw.as_slice();
        match self.data_type {
            6 => bytes.try_into().ok().map(|bytes| i32::from_le_bytes(bytes).into()).or(self.number),
            7 => bytes.try_into().ok().map(i64::from_le_bytes).or(self.number),
            _ => None,
        }
    }
}

impl Message for TensorProto {
    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match (tag, wire_type) {
            (1, _) => encoding::int64::merge_repeated(wire_type, &mut self.dims, buf, ctx),
            (2, _) => encoding::int32::merge(wire_type, &mut self.data_type, buf, ctx),
            (8, _) => encoding::string::merge(wire_type, &mut self.name, buf, ctx),
            (9, WireType::LengthDelimited) => {
                self.raw = short(buf)?;
                Ok(())
            }
            // `int32_data` and `int64_data`, packed.
            (5 | 7, WireType::LengthDelimited) => {
                let bytes = short(buf)?;
                let mut rest = bytes.as_slice();
                let number = encoding::decode_varint(&mut rest).ok().filter(|_| rest.is_empty());
                self.number = number.map(u64::cast_signed);
                Ok(())
            }
            _ => encoding::skip_field(wire_type, tag, buf, ctx),
        }
    }

    fn encode_raw(&self, _buf: &mut impl BufMut) {}

    fn encoded_len(&self) -> usize {
        0
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The bytes of a field, or none if they are more than one number takes.
fn short(buf: &mut impl Buf) -> Result<Vec<u8>, DecodeError> {
    const LONGEST_NUMBER: usize = 10;
    let length = usize::try_from(encoding::decode_varint(buf)?).unwrap_or(usize::MAX);
    if length <= LONGEST_NUMBER && length <= buf.remaining() {
        let mut bytes = vec![0; length];
        buf.copy_to_slice(&mut bytes);
        return Ok(bytes);
    }
    // Data may be missing at the end of a file that was cut: its length is not what is checked here.
    buf.advance(length.min(buf.remaining()));
    Ok(Vec::new())
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ValueInfo {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, optional, tag = "2")]
    pub(super) r#type: Option<TypeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TypeProto {
    #[prost(message, optional, tag = "1")]
    pub(super) tensor_type: Option<TensorType>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorType {
    #[prost(int32, tag = "1")]
    pub(super) elem_type: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) shape: Option<TensorShape>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorShape {
    #[prost(message, repeated, tag = "1")]
    pub(super) dim: Vec<Dimension>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Dimension {
    #[prost(int64, optional, tag = "1")]
    pub(super) dim_value: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub(super) dim_param: Option<String>,
}
