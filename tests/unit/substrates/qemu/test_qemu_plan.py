"""What QEMU is told."""

from dutyfree.substrates.qemu.plan import Descriptors, Hardware, agent_port, arguments

HARDWARE = Hardware(accel="tcg", memory_bytes=256 << 20)
FDS = Descriptors(monitor=5, control=6, console=7, disks=((8,),), agent=9, kernel=10, initramfs=11)


def after(words, flag):
    return [words[i + 1] for i, word in enumerate(words) if word == flag]


def test_only_the_living_agents_port_has_a_stream():
    words = arguments(HARDWARE, FDS, boot="quiet")
    devices = after(words, "-chardev")
    assert f"socket,id={agent_port(1)},fd=9" in devices
    assert f"null,id={agent_port(2)}" in devices


def test_a_machine_cannot_start_programs_and_has_no_network():
    words = arguments(HARDWARE, FDS, boot="quiet")
    assert "spawn=deny" in after(words, "-sandbox")[0]
    assert after(words, "-netdev") == []


def test_the_network_for_ssh_leads_nowhere_else():
    words = arguments(Hardware(accel="tcg", memory_bytes=256 << 20, ethernet=True), FDS, boot="quiet")
    assert "restrict=on" in after(words, "-netdev")[0]
    assert "hostfwd=tcp:127.0.0.1:0-" in after(words, "-netdev")[0]


def test_the_images_disk_is_read_only_and_the_second_is_not():
    words = arguments(HARDWARE, Descriptors(monitor=5, control=6, console=7, disks=((8,), (12, 13))), boot="quiet")
    first, second = after(words, "-drive")
    assert "readonly=on" in first
    assert "readonly=off" in second


def test_a_clone_waits_for_its_state_on_private_memory():
    fds = Descriptors(monitor=5, control=6, console=7, disks=((8,),), agent=9, generation=2, memory=12)
    words = arguments(HARDWARE, fds, boot=None)
    assert after(words, "-incoming") == ["defer"]
    assert "share=off" in after(words, "-object")[0]
    assert after(words, "-kernel") == []


def test_machines_that_a_guest_can_tell_apart_have_different_keys():
    others = [
        Hardware(accel="kvm", memory_bytes=256 << 20),
        Hardware(accel="tcg", memory_bytes=512 << 20),
        Hardware(accel="tcg", memory_bytes=256 << 20, cpus=2),
    ]
    assert len({HARDWARE.key, *(one.key for one in others)}) == 4
