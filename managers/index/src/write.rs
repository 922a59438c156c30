//! Writes our own event.

use crate::events::{Batch, Event, Kind};

impl Batch {
    /// Makes our own event: vLLM's newest fields, of which group and kind are always there, so that states are told.
    /// Whoever keeps states and publishes nothing of them (a hook in SGLang, a simulator, a runner) sends these.
    pub fn to_msgpack(&self) -> Vec<u8> {
        let mut out = vec![0x93];
        put_number(&mut out, 0xcb, (self.time as f64 / 1e6).to_bits(), 8);
        put_number(&mut out, 0xdd, self.events.len() as u64, 4);
        for event in &self.events {
            match event {
                Event::Stored(stored) => {
                    out.push(0x80 | if stored.is_keyed { 10 } else { 9 });
                    put_text(&mut out, "type");
                    put_text(&mut out, "BlockStored");
                    put_numbers(&mut out, "block_hashes", stored.hashes.iter().copied());
                    put_maybe(&mut out, "parent_block_hash", stored.parent);
                    put_numbers(&mut out, "token_ids", stored.tokens.iter().map(|token| u64::from(*token)));
                    put_maybe(&mut out, "block_size", Some(stored.block.into()));
                    put_place(&mut out, stored.on_device);
                    put_maybe(&mut out, "group_idx", Some(stored.group.unwrap_or(0).into()));
                    put_text(&mut out, "kv_cache_spec_kind");
                    put_text(&mut out, stored.kind.unwrap_or(Kind::Full).to_vllm());
                    put_maybe(&mut out, "kv_cache_spec_sliding_window", stored.window.map(u64::from));
                    if stored.is_keyed {
                        put_text(&mut out, "cache_salt");
                        put_text(&mut out, "");
                    }
                }
                Event::Removed { hashes, group, on_device, .. } => {
                    out.push(0x84);
                    put_text(&mut out, "type");
                    put_text(&mut out, "BlockRemoved");
                    put_numbers(&mut out, "block_hashes", hashes.iter().copied());
                    put_place(&mut out, *on_device);
                    put_maybe(&mut out, "group_idx", Some(group.unwrap_or(0).into()));
                }
                Event::Cleared => {
                    out.push(0x81);
                    put_text(&mut out, "type");
                    put_text(&mut out, "AllBlocksCleared");
                }
            }
        }
        put_number(&mut out, 0xcf, self.rank.into(), 8);
        out
    }
}

impl Kind {
    fn to_vllm(self) -> &'static str {
        match self {
            Self::Full => "full_attention",
            Self::Window => "sliding_window",
            Self::State => "mamba",
            Self::Unknown => "unknown",
        }
    }
}

/// Writes MessagePack; lengths and numbers in their longest form, which every reader takes.
fn put_text(out: &mut Vec<u8>, text: &str) {
    put_number(out, 0xdb, text.len() as u64, 4);
    out.extend(text.as_bytes());
}

fn put_number(out: &mut Vec<u8>, tag: u8, number: u64, bytes: usize) {
    out.push(tag);
    out.extend(&number.to_be_bytes()[8 - bytes..]);
}

fn put_maybe(out: &mut Vec<u8>, name: &str, number: Option<u64>) {
    put_text(out, name);
    match number {
        Some(number) => put_number(out, 0xcf, number, 8),
        None => out.push(0xc0),
    }
}

fn put_numbers(out: &mut Vec<u8>, name: &str, numbers: impl ExactSizeIterator<Item = u64>) {
    put_text(out, name);
    put_number(out, 0xdd, numbers.len() as u64, 4);
    numbers.for_each(|number| put_number(out, 0xcf, number, 8));
}

fn put_place(out: &mut Vec<u8>, on_device: bool) {
    put_text(out, "medium");
    put_text(out, if on_device { "GPU" } else { "CPU" });
}
