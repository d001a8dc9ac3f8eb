//! The metrics of a server over AF_XDP: well formed, and those that docs/metrics.md names.

use crate::common::{Server, ZONE, dig_until, zone};
use crate::exposition::{check_documented, check_exposed, parse};
use crate::nic_table::{a_nic, key};
use crate::queries::check_values;

#[test]
fn what_is_exposed_over_af_xdp_is_well_formed_and_documented() {
    let (pins, lab) = a_nic();
    let (dir, _) = zone(ZONE);
    let key: Vec<String> = key(&lab).iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!(
        "[dataplane]\ninterface = [\"vs\"]\nlisten = [\"198.18.0.1:53\", \"198.18.0.53:53\"]\nown = [\"198.18.0.53/24\"]\n\
         cpus = \"0,1\"\nrss-key = \"{}\"\nrss-table = \"{}\"\n\
         [[dns.zone]]\norigin = \"example.com\"\nfile = \"example.com.zone\"\n\
         [web]\nlisten = [\"198.18.0.1:80\"]\nroot = \"site\"\n\
         [control]\npath = \"{}\"\nmetrics = \"127.0.0.1:9153\"\n",
        key.join(":"),
        pins.table().display(),
        dir.path().join("control").display(),
    );
    let server = Server::start_config(lab.server(), dir, &text);
    dig_until(&lab, "@198.18.0.1 www.example.com A", "198.18.0.80");
    // own addresses have figures once nobody else was found to have them
    server.wait_until("the own address", |stats| stats.sum("own_address_state", &[]) == 1);
    let page = lab.server().run(&["curl", "-sS", "http://127.0.0.1:9153/metrics"]).unwrap();
    let families = parse(&page).unwrap_or_else(|error| panic!("{error}\n{page}"));
    check_documented(&families);
    // threads without a queue would keep the NIC's table from being followed, and own addresses are not the driver's
    let not_here = ["without a queue", "driver"];
    check_exposed(&families, |section| section.contains("AF_XDP") && !not_here.iter().any(|it| section.contains(it)));
    assert!(check_values(&families) > 20, "what alerts and dashboard name of our own stack");
}
