use super::*;

/// An interface of this driver.
fn device(driver: &str, has_lower: bool) -> Device {
    let lo = Device::find("lo").unwrap().unwrap();
    Device { driver: driver.into(), has_lower, name: "if0".into(), loopback: false, ..lo }
}

#[test]
fn a_driver_that_runs_programs_in_other_interfaces_is_known() {
    use Mode::{Auto, Copy, Zerocopy};
    let cases = [
        ("bonding", true, Auto, true),
        // its parts may come later
        ("bonding", false, Auto, true),
        ("bonding", true, Copy, true),
        ("bonding", true, Zerocopy, true),
        ("hv_netvsc", true, Auto, true),
        ("hv_netvsc", false, Auto, true),
        ("hv_netvsc", true, Copy, true),
        ("hv_netvsc", false, Copy, false),
        ("ice", false, Auto, false),
        // these have no program in their driver
        ("bridge", true, Auto, false),
        ("team", true, Auto, false),
    ];
    for (driver, has_lower, mode, below) in cases {
        assert_eq!(runs_below(&device(driver, has_lower), mode).is_some(), below, "{driver}, {has_lower}, {mode}");
    }
}

#[test]
fn a_bond_is_refused_a_native_mode_before_anything_is_attached() {
    let config = OpenConfig { mode: Mode::Copy, ..OpenConfig::new("if0") };
    let Err(Failed::Mode(why)) = make(&config, &device("bonding", true), COPY) else { panic!("no mode is refused") };
    assert_eq!(
        why,
        "bonding hands its program to the interfaces below if0, where it takes nothing for if0: open one of those, or use --mode generic"
    );
}
