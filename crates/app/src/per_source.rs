//! How many connections one source may have, by service: what it has with one service does not count with another.

use crate::Listener;

/// Bounds on one source's connections. Listeners are divided into services by their numbers; the connections of listeners below the first,
/// and those that a service asks for, are counted by themselves and bounded by the engine's own limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerSource {
    /// the first listener of each service and the service's bound, in the order of listeners
    services: Vec<(Listener, usize)>,
}

impl PerSource {
    /// What stands for the listener of a connection that a service asks for.
    pub const ASKED: Listener = Listener(u16::MAX);

    /// Bounds of services, each from its first listener up to the next service's. One that has no listener begins where the next does.
    ///
    /// # Panics
    /// When the listeners are not in order, or there are more than 255 services.
    pub fn new(services: Vec<(Listener, usize)>) -> PerSource {
        assert!(services.is_sorted_by_key(|(first, _)| *first), "services out of order: {services:?}");
        assert!(services.len() <= usize::from(u8::MAX), "{} services", services.len());
        PerSource { services }
    }

    /// The number of a listener's service, 0 for none.
    #[inline]
    pub fn service(&self, listener: Listener) -> u8 {
        match listener {
            PerSource::ASKED => 0,
            _ => self.services.iter().take_while(|(first, _)| *first <= listener).count() as u8,
        }
    }

    /// A service's bound, by that number; None is the engine's own limit.
    #[inline]
    pub fn most(&self, service: u8) -> Option<usize> {
        Some(self.services.get(usize::from(service).checked_sub(1)?)?.1)
    }

    /// All bounds.
    pub fn bounds(&self) -> impl Iterator<Item = usize> {
        self.services.iter().map(|(_, most)| *most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_divided_by_their_numbers() {
        // the second has no listener
        let bounds = PerSource::new(vec![(Listener(1), 10), (Listener(3), 20), (Listener(3), 30)]);
        let of = |n| (bounds.service(Listener(n)), bounds.most(bounds.service(Listener(n))));
        assert_eq!([of(0), of(1), of(2)], [(0, None), (1, Some(10)), (1, Some(10))]);
        assert_eq!([of(3), of(u16::MAX - 1), of(u16::MAX)], [(3, Some(30)), (3, Some(30)), (0, None)]);
        assert_eq!(PerSource::default().service(Listener(7)), 0);
    }
}
