"""Whether KVM is worth using: judged by a guest's speed, never by the device's existence."""

from dutyfree.substrates.qemu.kvm import NATIVE_NS, judge, verdict


def test_without_a_device_there_is_no_kvm(tmp_path):
    found = judge(str(tmp_path / "kvm"))
    assert not found.usable
    assert "there is no" in found.reason


def test_a_device_that_is_no_kvm_is_refused_with_its_error(tmp_path):
    fake = tmp_path / "kvm"
    fake.write_bytes(b"")
    found = judge(str(fake))
    assert not found.usable
    assert "a guest cannot run" in found.reason


def test_an_answer_that_does_not_come_in_time_is_a_no(tmp_path):
    fake = tmp_path / "kvm"
    fake.write_bytes(b"")
    found = judge(str(fake), patience_s=0.001)  # no child answers as soon as that
    assert not found.usable
    assert "did not end within" in found.reason


def test_only_native_speed_is_usable():
    assert verdict(NATIVE_NS / 2).usable
    assert not verdict(700.0).usable
    assert "700 ns" in verdict(700.0).reason


def test_this_machine_gets_an_answer():
    found = judge()
    assert found.usable == ("natively" in found.reason)
