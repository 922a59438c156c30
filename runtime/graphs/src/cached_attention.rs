//! `AttentionPlugin`: new keys are rotated and written to their rows of the cache, and queries see the rows so far.

use cacheplan_transforms::onnx::EdgeAttention;

use crate::tensor::{Operand, Stored};

/// The operator over q, k, v, cache `[batch, 2, kv_heads, capacity, head_dim]`, lengths, rope table and start index, all
/// of them row by row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachedAttention(pub(crate) EdgeAttention);

/// The rows of a sequence's call: the position of its first token, and how many tokens count.
fn rows(length: i64, start: Option<i64>, tokens: usize, capacity: usize) -> Result<(usize, usize), String> {
    // A decoding step is told the whole length, its token included; a prompt how many of its tokens count.
    let (first, count) = match start {
        Some(_) if tokens == 1 => (length - 1, 1),
        start => (start.unwrap_or(0), length.clamp(0, tokens as i64)),
    };
    let fits = usize::try_from(first).ok().filter(|first| first + count as usize <= capacity);
    let first = fits.ok_or_else(|| format!("{count} tokens from position {first} on, in a cache of {capacity}"))?;
    Ok((first, count as usize))
}

fn dot<T: Stored>(a: &[f32], b: &[T]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b.wide()).sum()
}

impl CachedAttention {
    /// Makes `[batch, tokens, heads, head_dim]`, and writes the new rows of the cache; `before` is told where, and what was
    /// there.
    pub(crate) fn run<T: Stored>(
        &self,
        inputs: &[Operand<'_>],
        out: &mut [f32],
        cache: &mut [T],
        before: &mut dyn FnMut(usize, f32),
    ) -> Result<(), String> {
        let [q, k, v, past, lengths, table, start] = inputs else { return Err("it takes seven inputs".to_owned()) };
        let (&[batch, tokens, ..], &[_, _, _, capacity, _]) = (q.layout.shape.as_slice(), past.layout.shape.as_slice())
        else {
            return Err("its queries or its cache have too few axes".to_owned());
        };
        let (q, k, v, table_rows) = (q.rows()?, k.rows()?, v.rows()?, table.rows()?);
        let (lengths, starts) = (&lengths.ints()?[lengths.layout.offset..], &start.ints()?[start.layout.offset..]);
        let starts = &starts[..start.layout.len()];
        out.fill(0.0);
        let &[tables, positions, rotary] = table.layout.shape.as_slice() else {
            return Err("its rope table has not three axes".to_owned());
        };
        let (heads, kv_heads) = (self.0.heads as usize, self.0.kv_heads as usize);
        let head_dim = self.0.head_dim as usize;
        let scale = self.0.scale.unwrap_or(1.0 / (head_dim as f32).sqrt());
        let mut scores = Vec::new();
        let (mut query, mut key) = (vec![0.0; head_dim], vec![0.0; head_dim]);
        for (sequence, &length) in lengths.iter().enumerate().take(batch) {
            let (first, count) = rows(length, starts.get(sequence).copied(), tokens, capacity)?;
            if first + count > positions {
                return Err(format!("position {} of a rope table with {positions}", first + count - 1));
            }
            let angles = |position: usize| {
                let table = if tables == 1 { 0 } else { sequence };
                &table_rows[(table * positions + position) * rotary..][..rotary]
            };
            let row = |kv: usize, head: usize, position: usize| {
                (((sequence * 2 + kv) * kv_heads + head) * capacity + position) * head_dim
            };
            for token in 0..count {
                let position = first + token;
                for head in 0..kv_heads {
                    let from = ((sequence * tokens + token) * kv_heads + head) * head_dim;
                    key.copy_from_slice(&k[from..from + head_dim]);
                    rotate(&mut key, angles(position));
                    for (kv, new) in [(0, key.as_slice()), (1, &v[from..from + head_dim])] {
                        let at = row(kv, head, position);
                        for (n, (stored, new)) in cache[at..at + head_dim].iter_mut().zip(new).enumerate() {
                            before(at + n, stored.wide());
                            *stored = T::narrow(*new);
                        }
                    }
                }
            }
            for token in 0..count {
                let position = first + token;
                let oldest = self.0.window.map_or(0, |window| (position + 1).saturating_sub(window as usize));
                for head in 0..heads {
                    let from = ((sequence * tokens + token) * heads + head) * head_dim;
                    query.copy_from_slice(&q[from..from + head_dim]);
                    rotate(&mut query, angles(position));
                    let group = head * kv_heads / heads;
                    scores.clear();
                    scores.extend((oldest..=position).map(|key| {
                        let at = row(0, group, key);
                        scale * dot(&query, &cache[at..at + head_dim])
                    }));
                    let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    scores.iter_mut().for_each(|score| *score = (*score - top).exp());
                    let whole: f32 = scores.iter().sum();
                    let out = &mut out[from..from + head_dim];
                    for (key, score) in (oldest..=position).zip(&scores) {
                        let at = row(1, group, key);
                        let values = &cache[at..at + head_dim];
                        out.iter_mut().zip(values).for_each(|(out, value)| *out += score / whole * value.wide());
                    }
                }
            }
        }
        Ok(())
    }
}

/// Turns the first channels by angles whose cosines come first: the halves are pairs.
fn rotate(x: &mut [f32], angles: &[f32]) {
    let half = angles.len() / 2;
    let (cos, sin) = angles.split_at(half);
    for pair in 0..half {
        let (a, b) = (x[pair], x[half + pair]);
        x[pair] = a * cos[pair] - b * sin[pair];
        x[half + pair] = b * cos[pair] + a * sin[pair];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// Lengths are whole where one token decodes, and those of the call where several are new.
    #[rstest]
    #[case::prompt(5, None, 8, Ok((0, 5)))]
    #[case::later_piece(5, Some(3), 8, Ok((3, 5)))]
    #[case::decoding(8, Some(7), 1, Ok((7, 1)))]
    #[case::first_token(1, None, 1, Ok((0, 1)))]
    #[case::no_room(9, Some(12), 9, Err("9 tokens from position 12 on, in a cache of 16"))]
    #[case::no_length(0, Some(0), 1, Err("1 tokens from position -1 on, in a cache of 16"))]
    fn lengths_and_starts_tell_the_rows_of_a_call(
        #[case] length: i64,
        #[case] start: Option<i64>,
        #[case] tokens: usize,
        #[case] expected: Result<(usize, usize), &str>,
    ) {
        assert_eq!(rows(length, start, tokens, 16), expected.map_err(str::to_owned));
    }
}
