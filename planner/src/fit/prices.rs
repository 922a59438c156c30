//! What devices cost.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

use crate::device::DeviceInfo;

/// What devices cost, as its TOML file states it: `currency = "USD"` and `[per_hour]` with a number for each device.
/// [`state`](Self::state) states one by itself.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// What the prices are in; empty where nobody says.
    pub currency: String,
    /// One hour of one device, by its name.
    pub per_hour: BTreeMap<String, f64>,
}

/// What one hour costs, as people write it: `2.49`, `$2.49`.
#[derive(Clone, Debug, PartialEq)]
pub struct Price {
    /// The sign in front of it; empty where there is none.
    pub currency: &'static str,
    /// How much.
    pub amount: f64,
}

/// The signs that stand in front of an amount.
const SIGNS: [&str; 4] = ["$", "€", "£", "¥"];

impl Price {
    /// A device and what an hour of it costs, `h100=2.49`.
    ///
    /// # Errors
    /// In words: what has no `=`, and what is no price.
    pub fn of_device(text: &str) -> Result<(String, Self), String> {
        // A comma parts prices, so that what stands behind one of a number is a number alone.
        let point = if text.trim().parse::<u64>().is_ok() { ", with a point before the cents" } else { "" };
        let expected = || format!("`{}` is no price; write one such as h100=2.49{point}", text.trim());
        let (device, price) = text.split_once('=').ok_or_else(expected)?;
        Ok((device.trim().to_lowercase(), price.trim().parse()?))
    }
}

impl FromStr for Price {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sign = SIGNS.into_iter().find_map(|sign| Some((sign, text.strip_prefix(sign)?)));
        let (currency, amount) = sign.unwrap_or(("", text));
        if amount.starts_with('.') {
            return Err(format!(
                "`{text}` has no digit before its point; write 0{amount}, or, if a sign stood in front, quote it: a shell reads `$2` itself"
            ));
        }
        let amount = amount.parse().map_err(|_| format!("`{text}` is no price; write one such as 2.49 or $2.49"))?;
        Ok(Self { currency, amount })
    }
}

/// An amount without a currency.
impl From<f64> for Price {
    fn from(amount: f64) -> Self {
        Self { currency: "", amount }
    }
}

/// An amount with so many digits, in a currency if it has a name: a sign stands in front, a word behind.
pub(crate) fn money(amount: f64, digits: usize, currency: &str) -> String {
    match currency {
        "" => format!("{amount:.digits$}"),
        sign if SIGNS.contains(&sign) => format!("{sign}{amount:.digits$}"),
        word => format!("{amount:.digits$} {word}"),
    }
}

/// As they are listed, each with the sign of their currency: `h100=$2.49 h200=$3.5`.
impl fmt::Display for Prices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if SIGNS.contains(&&*self.currency) { &*self.currency } else { "" };
        let each = self.per_hour.iter().map(|(device, price)| format!("{device}={sign}{price}"));
        f.write_str(&each.collect::<Vec<_>>().join(" "))
    }
}

impl Prices {
    /// Reads them.
    ///
    /// # Errors
    /// In words: text that is no TOML, an unknown or missing key, a price below 0.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        let prices: Self = cacheplan_files::Source::parse_toml(text).map_err(|error| error.to_string())?;
        for (device, price) in &prices.per_hour {
            let named = device.parse::<DeviceInfo>().map_err(|error| format!("`per_hour.{device}`: {error}"))?;
            if let Some(other) = prices.name_of(&named).filter(|other| *other != device) {
                return Err(format!("`per_hour.{other}` and `per_hour.{device}` are prices of one device"));
            }
            if !price.is_finite() || *price < 0.0 {
                return Err(format!("`per_hour.{device}` is {price}; a price of at least 0 was expected"));
            }
        }
        Ok(prices)
    }

    /// States the price of an hour of one device, in place of another that is stated of it.
    ///
    /// # Errors
    /// In words: what is no device, a price below 0, one in another currency than those that are stated.
    pub fn state(&mut self, device: &str, price: impl Into<Price>) -> Result<(), String> {
        let Price { currency, amount: price } = price.into();
        let named = device.parse::<DeviceInfo>().map_err(|error| error.to_string())?;
        if !price.is_finite() || price < 0.0 {
            return Err(format!("{price} is no price of `{device}`; a number of at least 0 was expected"));
        }
        if !currency.is_empty() && !self.currency.is_empty() && currency != self.currency {
            return Err(format!(
                "the price of `{device}` is in {currency}, others are in {}; state one currency",
                self.currency
            ));
        }
        if !currency.is_empty() {
            currency.clone_into(&mut self.currency);
        }
        let stated = self.name_of(&named).cloned().unwrap_or_else(|| device.to_owned());
        self.per_hour.insert(stated, price);
        Ok(())
    }

    /// Prices as somebody lists them, `h100=$2.49, h200=3.5`: commas between them, or blanks.
    ///
    /// # Errors
    /// As [`Price::of_device`] and [`state`](Self::state).
    pub fn listed(text: &str) -> Result<Self, String> {
        let parts = text.split([',', ';']).flat_map(|part| match part.matches('=').count() {
            0 | 1 => vec![part],
            _ => part.split_whitespace().collect(),
        });
        let mut prices = Self::default();
        for part in parts.filter(|part| !part.trim().is_empty()) {
            let (device, price) = Price::of_device(part)?;
            prices.state(&device, price)?;
        }
        Ok(prices)
    }

    /// The same with what somebody types of one device, `$3.50`, or of several, in place of all; nothing is none of that device.
    ///
    /// # Errors
    /// As [`listed`](Self::listed).
    pub fn typed(mut self, text: &str, device: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.contains('=') {
            return Self::listed(text);
        }
        let named = device.parse::<DeviceInfo>().map_err(|error| error.to_string());
        let known = named.as_ref().ok().and_then(|named| self.name_of(named).cloned());
        if let Some(known) = known {
            self.per_hour.remove(&known);
        }
        if self.per_hour.is_empty() {
            self.currency.clear();
        }
        if !text.is_empty() {
            named?;
            // A price of one device is no list, so that a comma is its point.
            self.state(&device.trim().to_lowercase(), text.replacen(',', ".", 1).parse::<Price>()?)?;
        }
        Ok(self)
    }

    /// What a device is called here.
    fn name_of(&self, device: &DeviceInfo) -> Option<&String> {
        self.per_hour.keys().find(|name| name.parse().as_ref() == Ok(device))
    }

    /// The price of an hour of one device, however its name is written.
    pub(super) fn of(&self, device: &DeviceInfo) -> Option<f64> {
        self.per_hour.get(self.name_of(device)?).copied()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::with_a_sign("$3.50", "h200=$3.5")]
    #[case::a_comma_as_point("3,5", "h100=2 h200=3.5")]
    #[case::of_several("h100=$2.50, h200=$3.50", "h100=$2.5 h200=$3.5")]
    #[case::one_sign_for_all("h100=$2.50,h200 = 3.50", "h100=$2.5 h200=$3.5")]
    #[case::blanks("h100=2.5 H200=3.1", "h100=2.5 h200=3.1")]
    #[case::none_of_it("", "h100=2")]
    fn prices_are_taken_as_they_are_typed(#[case] text: &str, #[case] expected: &str) {
        let stated = if text.starts_with('$') { "" } else { "h100=2" };
        let prices = Prices::listed(stated).unwrap().typed(text, "h200").unwrap();
        assert_eq!(prices.to_string(), expected);
        assert_eq!(Prices::listed(expected).unwrap(), prices);
    }

    #[rstest]
    #[case::a_unit("2.5/h", "`2.5/h` is no price; write one such as 2.49 or $2.49")]
    #[case::a_comma_in_a_list("h100=2.5, h200=3,1", "`1` is no price; write one such as h100=2.49")]
    #[case::no_device("h10000=2", "h10000")]
    #[case::below_nothing("-1", "-1 is no price of `h200`")]
    #[case::another_currency("€3", "the price of `h200` is in €, others are in $")]
    fn what_is_no_price_is_said(#[case] text: &str, #[case] expected: &str) {
        let error = Prices::listed("h100=$2").unwrap().typed(text, "h200").unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
