//! The devices that a plan is for: how many, and what each has.

use std::str::FromStr;

use crate::budget::Budget;
use crate::config::Config;
use crate::device::{BadDevice, DeviceInfo, DeviceKind};
use crate::error::PlanError;
use crate::size::{ByteSize, counted};
use crate::stated::Stated;

/// So many devices of one kind, `8xh100`.
#[derive(Clone, Debug, PartialEq)]
pub struct Devices {
    count: u32,
    device: DeviceInfo,
    /// One of them in the user's words, where their number was stated with it.
    word: Option<String>,
}

impl Devices {
    /// How many.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// One of them.
    pub const fn device(&self) -> &DeviceInfo {
        &self.device
    }

    /// One of them in the user's words, where their number was stated with it.
    pub(crate) fn word(&self) -> Option<&str> {
        self.word.as_deref()
    }

    /// The GPUs of a usual node.
    pub const USUAL_NODE: u32 = 8;

    /// Another number of the same.
    pub fn times(&self, count: u32) -> Self {
        Self { count, ..self.clone() }
    }

    /// The budget where they divide the model.
    ///
    /// # Errors
    /// Another number of ranks than devices.
    pub(crate) fn divide(&self, config: &Config) -> Result<Budget, PlanError> {
        let mut budget = config.budget.clone();
        if self.assumes_ranks(config) {
            budget.parallel.tp = self.count;
        }
        match budget.parallel.world_size() {
            ranks if self.count > 1 && ranks != u64::from(self.count) => {
                let ranks = counted(ranks, "rank");
                Err(PlanError::Devices(format!("{} devices are named, but [parallel] has {ranks}", self.count)))
            }
            _ => Ok(budget),
        }
    }

    /// Whether they are tensor parallel ranks since nobody says how they divide the model.
    pub(crate) fn assumes_ranks(&self, config: &Config) -> bool {
        self.count > 1 && config.budget.parallel.world_size() == 1 && !config.is_stated("parallel.tp")
    }

    /// What is taken for granted of them beside a budget that is stated in keys or in flags.
    ///
    /// # Errors
    /// Another number of ranks than devices.
    pub fn notes(&self, config: &Config, stated: Stated) -> Result<Vec<String>, PlanError> {
        let mut notes = Vec::new();
        if self.device.is_nominal() {
            let DeviceInfo { name, total_bytes, .. } = &self.device;
            let size = ByteSize(*total_bytes);
            let otherwise = match self.device.kind {
                DeviceKind::Integrated => {
                    let [least, most] = self.device.shares_of_gpu().map(|share| ByteSize(share.of(size.0)));
                    let by = if stated == Stated::Command { "--device" } else { "--memory-fraction" };
                    format!("its GPU may use less, {least} to {most} in logs: state it with {by}")
                }
                DeviceKind::Cpu | DeviceKind::Cuda => "state the size where yours differs".to_owned(),
            };
            let reserve = if stated == Stated::Keys { "memory.reserve" } else { "--reserve" };
            let screen = match self.device.has_outputs() && !config.is_stated("memory.reserve") {
                true => format!(", and with {reserve} what a screen takes of it"),
                false => String::new(),
            };
            notes.push(format!("{name} has {size} by {}; {otherwise}{screen}", self.device.reported_by()));
        }
        self.divide(config)?;
        if self.assumes_ranks(config) {
            let otherwise = match stated {
                Stated::Flags => "--tp, --pp, --dp and --ep divide otherwise".to_owned(),
                Stated::Keys | Stated::Command => "[parallel] divides otherwise".to_owned(),
                Stated::Place { keys, .. } => format!("{keys} with tp, pp, dp and ep divides otherwise"),
            };
            notes.push(format!("{count} devices: tp {count}; {otherwise}", count = self.count));
        }
        Ok(notes)
    }
}

impl From<DeviceInfo> for Devices {
    fn from(device: DeviceInfo) -> Self {
        Self { count: 1, device, word: None }
    }
}

impl FromStr for Devices {
    type Err = BadDevice;

    /// `24GiB`, `h100`, `8xh100`.
    fn from_str(text: &str) -> Result<Self, BadDevice> {
        let (count, device) = DeviceInfo::several(text)?;
        let word = text.split_once(['x', 'X', '*']).filter(|_| count > 1).map(|(_, word)| word.trim().to_owned());
        Ok(Self { count, device, word })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// A card that may drive a screen holds less than its name says.
    #[rstest]
    #[case("rtx-4090", Stated::Flags, Some("with --reserve what a screen"))]
    #[case("rtx-a6000", Stated::Keys, Some("with memory.reserve what a screen"))]
    #[case("h100", Stated::Flags, None)]
    #[case("m4-max-128gb", Stated::Flags, None)]
    #[case("24GiB", Stated::Flags, None)]
    fn what_a_screen_takes_is_spoken_of_where_one_may_be(
        #[case] device: &str,
        #[case] stated: Stated,
        #[case] expected: Option<&str>,
    ) {
        let notes = device.parse::<Devices>().unwrap().notes(&Config::from(Budget::default()), stated).unwrap();
        match expected {
            Some(expected) => assert!(notes[0].contains(expected), "{notes:?}"),
            None => assert!(!notes.iter().any(|note| note.contains("screen")), "{notes:?}"),
        }
    }
}
