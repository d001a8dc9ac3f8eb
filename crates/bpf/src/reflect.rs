//! The yardstick of the driver tier: `reflect.bpf.c` at an interface.

use crate::error::chain;
use aya::maps::{MapData, PerCpuArray};
use aya::programs::links::FdLink;
use aya::programs::xdp::{Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader, VerifierLogLevel};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/reflect.bpf.o"));

/// The program is not in place, or does not tell.
#[derive(Debug, thiserror::Error)]
#[error("the reflector in the driver: {doing}: {why}")]
pub struct ReflectorError {
    /// what was tried
    pub doing: &'static str,
    /// what the kernel or the loader said
    pub why: String,
}

/// The program on one interface. Dropping it takes it off.
pub struct Reflector {
    reflected: PerCpuArray<MapData, u64>,
    /// what was loaded stays loaded while these live
    _link: FdLink,
    _program: Ebpf,
}

impl Reflector {
    /// Has the driver of interface `ifindex` send datagrams to `port` back where they came from. `by_redirect`: as veth needs it, which
    /// wakes no peer without a program for frames that are sent back otherwise.
    ///
    /// # Errors
    /// What the kernel refuses: the driver takes no program, or has one.
    pub fn attach(ifindex: u32, port: u16, by_redirect: bool) -> Result<Reflector, ReflectorError> {
        let back = if by_redirect { ifindex } else { 0 };
        let mut program = EbpfLoader::new()
            .verifier_log_level(VerifierLogLevel::STATS)
            .override_global("port", &port.to_be(), true)
            .override_global("back", &back, true)
            .load(OBJECT)
            .map_err(|e| error("loading", &e))?;
        let reflected = program.take_map("reflected").expect("the object that build.rs compiled has the map");
        let reflected = reflected.try_into().map_err(|e| error("loading", &e))?;
        let xdp = program.program_mut("reflect").expect("the object that build.rs compiled has the program");
        let xdp: &mut Xdp = xdp.try_into().map_err(|e| error("loading", &e))?;
        xdp.load().map_err(|e| error("loading", &e))?;
        let id = xdp.attach_to_if_index(ifindex, XdpMode::Driver).map_err(|e| error("attaching", &e))?;
        let link = xdp.take_link(id).map_err(|e| error("attaching", &e))?;
        // only a link of the bpf kind goes with the process
        let link = FdLink::try_from(link).map_err(|e| error("attaching", &e))?;
        Ok(Reflector { reflected, _link: link, _program: program })
    }

    /// Frames that were sent back.
    ///
    /// # Errors
    /// The kernel's.
    pub fn reflected(&self) -> Result<u64, ReflectorError> {
        let counts = self.reflected.get(&0, 0).map_err(|e| error("reading its count", &e))?;
        Ok(counts.iter().sum())
    }
}

impl std::fmt::Debug for Reflector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reflector")
    }
}

fn error(doing: &'static str, error: &dyn std::error::Error) -> ReflectorError {
    ReflectorError { doing, why: chain(error) }
}
