//! The bytes of a GGUF header: keys, then tensors, whose own bytes are left out.

/// Where tensors begin, and each of them.
const ALIGNMENT: u64 = 32;

/// A value of a key.
pub(super) enum Value<'a> {
    Text(&'a str),
    Number(u32),
    Float(f32),
    Flag(bool),
    Texts(Vec<String>),
    Numbers(Vec<u32>),
    Floats(Vec<f32>),
    Flags(Vec<bool>),
}

/// The type of a tensor's elements.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    F32,
    F16,
    /// 256 elements in 50 bytes: nothing is smaller.
    Iq1S,
}

impl Kind {
    /// The least that holds rows of so many elements.
    pub(super) const fn smallest(row: u64) -> Self {
        if row.is_multiple_of(256) { Self::Iq1S } else { Self::F16 }
    }

    const fn number(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Iq1S => 19,
        }
    }

    const fn bytes(self, elements: u64) -> u64 {
        match self {
            Self::F32 => elements.saturating_mul(4),
            Self::F16 => elements.saturating_mul(2),
            Self::Iq1S => (elements / 256).saturating_mul(50),
        }
    }
}

/// A header as it grows.
#[derive(Default)]
pub(super) struct Header {
    keys: Section,
    tensors: Section,
    /// Bytes of all tensors so far.
    data: u64,
}

/// Entries behind each other, and how many.
#[derive(Default)]
struct Section {
    bytes: Vec<u8>,
    entries: u64,
}

impl Section {
    fn number(&mut self, value: u64) {
        self.bytes.extend(value.to_le_bytes());
    }

    fn short(&mut self, value: u32) {
        self.bytes.extend(value.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.bytes.extend(text.as_bytes());
    }

    fn list(&mut self, kind: u32, length: usize) {
        self.short(9);
        self.short(kind);
        self.number(length as u64);
    }
}

impl Header {
    pub(super) fn key(&mut self, name: &str, value: Value<'_>) {
        let keys = &mut self.keys;
        keys.entries += 1;
        keys.text(name);
        match value {
            Value::Number(number) => {
                keys.short(4);
                keys.short(number);
            }
            Value::Float(number) => {
                keys.short(6);
                keys.short(number.to_bits());
            }
            Value::Flag(flag) => {
                keys.short(7);
                keys.bytes.push(flag.into());
            }
            Value::Text(text) => {
                keys.short(8);
                keys.text(text);
            }
            Value::Numbers(list) => {
                keys.list(5, list.len());
                list.into_iter().for_each(|number| keys.short(number));
            }
            Value::Floats(list) => {
                keys.list(6, list.len());
                list.into_iter().for_each(|number| keys.short(number.to_bits()));
            }
            Value::Flags(list) => {
                keys.list(7, list.len());
                keys.bytes.extend(list.into_iter().map(u8::from));
            }
            Value::Texts(list) => {
                keys.list(8, list.len());
                list.iter().for_each(|text| keys.text(text));
            }
        }
    }

    /// A tensor, its axes in GGUF's order: the fastest first.
    pub(super) fn tensor(&mut self, name: &str, axes: &[u64], kind: Kind) {
        let tensors = &mut self.tensors;
        tensors.entries += 1;
        tensors.text(name);
        tensors.short(u32::try_from(axes.len()).unwrap_or(u32::MAX));
        axes.iter().for_each(|axis| tensors.number(*axis));
        tensors.short(kind.number());
        tensors.number(self.data);
        let elements = axes.iter().fold(1u64, |product, axis| product.saturating_mul(*axis));
        self.data = self.data.saturating_add(aligned(kind.bytes(elements)));
    }

    /// The header up to where tensors begin, and how long the file is with them.
    pub(super) fn finish(self) -> (Vec<u8>, u64) {
        let mut file = Section::default();
        file.bytes.extend(b"GGUF");
        file.short(3);
        file.number(self.tensors.entries);
        file.number(self.keys.entries);
        file.bytes.extend(self.keys.bytes);
        file.bytes.extend(self.tensors.bytes);
        let start = aligned(file.bytes.len() as u64);
        // A header fits memory, and so does its padding.
        file.bytes.resize(usize::try_from(start).unwrap_or(usize::MAX), 0);
        (file.bytes, start.saturating_add(self.data))
    }
}

const fn aligned(bytes: u64) -> u64 {
    bytes.div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT)
}
