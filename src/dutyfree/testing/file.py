"""Files inside, by their absolute paths."""

from __future__ import annotations

import pytest

from dutyfree.core.errors import Misuse
from dutyfree.testing.base import Suite, declines

STRANGE = b"not \xff utf8".decode(errors="surrogateescape")


class FileSuite(Suite):
    async def test_what_is_written_can_be_read(self) -> None:
        async with self.box() as box:
            path = f"{self.scratch(box)}/file"
            for data in (b"", b"x", bytes(range(256)) * 4, b"line\r\n\0"):
                await box.write(path, data)
                assert await box.read(path) == data

    async def test_a_large_file_passes_both_ways(self) -> None:
        data = bytes(range(256)) * (8 << 12)
        async with self.box() as box:
            path = f"{self.scratch(box)}/large"
            await box.write(path, data)
            assert await box.read(path) == data
            assert (await box.stat(path)).size_bytes == len(data)

    async def test_a_write_replaces_and_never_leaves_a_longer_old_end(self) -> None:
        async with self.box() as box:
            path = f"{self.scratch(box)}/file"
            await box.write(path, b"long old content")
            await box.write(path, b"new")
            assert await box.read(path) == b"new"

    async def test_appending_keeps_what_was_there(self) -> None:
        async with self.box() as box:
            path = f"{self.scratch(box)}/log"
            await box.write(path, b"one\n", append=True)
            await box.write(path, b"two\n", append=True)
            assert await box.read(path) == b"one\ntwo\n"

    async def test_a_write_makes_the_directories_above(self) -> None:
        async with self.box() as box:
            path = f"{self.scratch(box)}/a/b/c/file"
            await box.write(path, b"deep")
            assert await box.read(path) == b"deep"

    async def test_a_part_of_a_file_can_be_read(self) -> None:
        async with self.box() as box:
            path = f"{self.scratch(box)}/file"
            await box.write(path, b"0123456789")
            assert await box.read(path, offset=3) == b"3456789"
            assert await box.read(path, offset=3, length=4) == b"3456"
            assert await box.read(path, length=2) == b"01"
            assert await box.read(path, offset=8, length=100) == b"89"
            assert await box.read(path, offset=100) == b""
            assert await box.read(path, length=0) == b""

    async def test_the_mode_is_as_asked(self) -> None:
        async with self.box() as box:
            path = f"{self.scratch(box)}/script"
            await box.write(path, b"#!/bin/sh\necho ran\n", mode=0o755)
            assert (await box.stat(path)).mode == 0o755

    async def test_what_is_not_there_is_file_not_found(self) -> None:
        async with self.box() as box:
            path = f"{self.scratch(box)}/nothing/here"
            for call in (box.read, box.stat, box.list, box.remove):
                with pytest.raises(FileNotFoundError):
                    await call(path)
            with pytest.raises(FileNotFoundError):
                await box.rename(path, f"{self.scratch(box)}/x")

    async def test_reading_a_directory_is_an_error_of_its_own(self) -> None:
        async with self.box() as box:
            await box.mkdir(self.scratch(box))
            with pytest.raises(IsADirectoryError):
                await box.read(self.scratch(box))

    async def test_listing_a_file_is_an_error_of_its_own(self) -> None:
        async with self.box() as box:
            path = f"{self.scratch(box)}/file"
            await box.write(path, b"")
            with pytest.raises(NotADirectoryError):
                await box.list(path)

    async def test_stat_tells_kind_size_and_name(self) -> None:
        async with self.box() as box:
            place = self.scratch(box)
            await box.write(f"{place}/file", b"12345", mode=0o640)
            found = await box.stat(f"{place}/file")
            assert (found.name, found.kind, found.size_bytes, found.mode) == ("file", "file", 5, 0o640)
            assert found.mtime_ns > 10**18
            assert (await box.stat(place)).kind == "directory"

    async def test_a_listing_is_sorted_and_complete(self) -> None:
        async with self.box() as box:
            place = f"{self.scratch(box)}/listing"
            for name in ("b", "a", "c c", ".hidden"):
                await box.write(f"{place}/{name}", b"x")
            await box.mkdir(f"{place}/dir")
            found = await box.list(place)
            assert [one.name for one in found] == [".hidden", "a", "b", "c c", "dir"]
            assert [one.kind for one in found] == ["file", "file", "file", "file", "directory"]

    async def test_an_empty_directory_lists_as_nothing(self) -> None:
        async with self.box() as box:
            await box.mkdir(f"{self.scratch(box)}/empty")
            assert await box.list(f"{self.scratch(box)}/empty") == []

    async def test_a_listing_beyond_its_limit_is_misuse(self) -> None:
        async with self.box() as box:
            place = f"{self.scratch(box)}/many"
            for n in range(5):
                await box.write(f"{place}/{n}", b"")
            assert len(await box.list(place, limit=5)) == 5
            with pytest.raises(Misuse):
                await box.list(place, limit=4)

    async def test_names_that_are_not_utf8_pass_both_ways(self) -> None:
        async with self.box() as box:
            place = f"{self.scratch(box)}/strange"
            await box.write(f"{place}/{STRANGE}", b"content")
            assert [one.name for one in await box.list(place)] == [STRANGE]
            assert await box.read(f"{place}/{STRANGE}") == b"content"
            await box.remove(f"{place}/{STRANGE}")
            assert await box.list(place) == []

    async def test_mkdir_makes_parents_and_is_fine_twice(self) -> None:
        async with self.box() as box:
            path = f"{self.scratch(box)}/a/b/c"
            await box.mkdir(path)
            await box.mkdir(path)
            assert (await box.stat(path)).kind == "directory"

    async def test_a_full_directory_goes_only_when_asked_recursively(self) -> None:
        async with self.box() as box:
            place = f"{self.scratch(box)}/full"
            await box.write(f"{place}/a/b", b"")
            with pytest.raises(OSError, match="not empty"):
                await box.remove(place)
            await box.remove(place, recursive=True)
            with pytest.raises(FileNotFoundError):
                await box.stat(place)

    async def test_a_file_and_an_empty_directory_can_be_removed(self) -> None:
        async with self.box() as box:
            place = self.scratch(box)
            await box.write(f"{place}/x/file", b"")
            await box.remove(f"{place}/x/file")
            await box.remove(f"{place}/x")
            assert "x" not in [one.name for one in await box.list(place)]

    async def test_a_rename_replaces_a_file(self) -> None:
        async with self.box() as box:
            place = self.scratch(box)
            await box.write(f"{place}/old", b"content")
            await box.write(f"{place}/new", b"replaced")
            await box.rename(f"{place}/old", f"{place}/new")
            assert await box.read(f"{place}/new") == b"content"
            with pytest.raises(FileNotFoundError):
                await box.stat(f"{place}/old")

    @pytest.mark.parametrize(
        "path", ["relative", "", "/nul\0byte", "/" + "x" * 5000, None, b"/bytes"], ids=lambda p: repr(p)[:12]
    )
    async def test_a_path_that_is_none_is_misuse(self, path: object) -> None:
        async with self.box() as box:
            for call in (box.read, box.stat, box.list, box.mkdir, box.remove):
                with pytest.raises(Misuse):
                    await call(path)  # type: ignore[arg-type]
            with pytest.raises(Misuse):
                await box.write(path, b"")  # type: ignore[arg-type]
            with pytest.raises(Misuse):
                await box.rename(path, "/tmp/x")  # type: ignore[arg-type]
            with pytest.raises(Misuse):
                await box.rename("/tmp/x", path)  # type: ignore[arg-type]

    async def test_data_that_is_neither_bytes_nor_text_is_misuse(self) -> None:
        async with self.box() as box:
            with pytest.raises(Misuse, match="data"):
                await box.write(f"{self.scratch(box)}/file", 5)  # type: ignore[arg-type]

    async def test_a_negative_offset_or_length_is_misuse(self) -> None:
        async with self.box() as box:
            path = f"{self.scratch(box)}/file"
            await box.write(path, b"0123")
            with pytest.raises(Misuse, match="offset"):
                await box.read(path, offset=-1)
            with pytest.raises(Misuse, match="length"):
                await box.read(path, length=-1)


class LinkedFileSuite(Suite):
    """Files that commands see too."""

    async def test_commands_and_file_calls_see_the_same_files(self) -> None:
        async with self.box() as box:
            place = self.scratch(box)
            await box.write(f"{place}/in", b"from the call")
            assert (await box.run(["cat", f"{place}/in"])).stdout == b"from the call"
            await box.run(f"printf 'from the command' >{place}/out")
            assert await box.read(f"{place}/out") == b"from the command"

    async def test_links_are_told_and_followed_when_asked(self) -> None:
        async with self.box() as box:
            place = self.scratch(box)
            await box.write(f"{place}/target", b"12345")
            assert (await box.run(["ln", "-s", "target", f"{place}/link"])).ok
            assert (await box.stat(f"{place}/link", follow=False)).kind == "symlink"
            assert (await box.stat(f"{place}/link")).kind == "file"
            assert await box.read(f"{place}/link") == b"12345"
            assert {one.name: one.kind for one in await box.list(place)}["link"] == "symlink"

    async def test_removing_a_link_keeps_what_it_points_to(self) -> None:
        async with self.box() as box:
            place = self.scratch(box)
            await box.write(f"{place}/dir/file", b"kept")
            assert (await box.run(["ln", "-s", "dir", f"{place}/link"])).ok
            await box.remove(f"{place}/link", recursive=True)
            assert await box.read(f"{place}/dir/file") == b"kept"

    async def test_a_fifo_or_device_is_refused_and_never_waited_for(self) -> None:
        async with self.box() as box:
            place = self.scratch(box)
            await box.mkdir(place)
            assert (await box.run(["mkfifo", f"{place}/fifo"])).ok
            assert (await box.stat(f"{place}/fifo")).kind == "other"
            for path in (f"{place}/fifo", "/dev/zero"):
                with pytest.raises(OSError):
                    await box.read(path)

    async def test_a_script_that_was_written_executable_runs(self) -> None:
        async with self.box() as box:
            path = f"{self.scratch(box)}/script"
            await box.write(path, b"#!/bin/sh\necho ran\n", mode=0o755)
            assert (await box.run([path])).stdout == b"ran\n"


class RightsSuite(Suite):
    """File methods have the rights of a user, as actions do."""

    async def test_a_file_method_can_do_what_its_user_can_and_no_more(self) -> None:
        async with self.box() as box:
            path = f"{self.scratch(box)}/rights/secret"
            await box.write(path, b"secret", mode=0o600)
            await box.mkdir(f"{self.scratch(box)}/closed", mode=0o700)
            if not box.capabilities.users:
                await declines(lambda: box.read(path, user="65534"))
            for refused in (
                lambda: box.read(path, user="65534"),
                lambda: box.write(path, b"other", user="65534"),
                lambda: box.write(f"{path}-other", b"new", user="65534"),
                lambda: box.mkdir(f"{path}-directory", user="65534"),
                lambda: box.remove(path, user="65534"),
                lambda: box.rename(path, "/tmp/stolen", user="65534"),
                lambda: box.list(f"{self.scratch(box)}/closed", user="65534"),
            ):
                with pytest.raises(PermissionError):
                    await refused()
            assert await box.read(path) == b"secret"
            with pytest.raises(Misuse):
                await box.read(path, user="no-such-user")

    async def test_what_a_user_writes_is_that_users(self) -> None:
        async with self.box() as box:
            place = f"{self.scratch(box)}/open"
            await box.mkdir(place)
            if not box.capabilities.users:
                await declines(lambda: box.write(f"{place}/file", b"mine", user="65534"))
            await box.run(["chmod", "1777", place])
            await box.write(f"{place}/a/file", b"mine", user="65534")
            assert (await box.stat(f"{place}/a", user="65534")).uid == 65534
            assert (await box.stat(f"{place}/a/file")).uid == 65534
            await box.rename(f"{place}/a/file", f"{place}/a/other", user="65534")
            assert [entry.name for entry in await box.list(f"{place}/a", user="65534")] == ["other"]
            await box.remove(f"{place}/a", recursive=True, user="65534")
            # The next call without a user has the owner's rights again.
            await box.write("/etc/owned", b"")
            assert (await box.stat("/etc/owned")).uid == 0

    async def test_the_user_of_the_spec_is_the_user_of_file_methods(self) -> None:
        if not self.substrate.capabilities.users:
            await declines(lambda: self.box(user="65534"))
        async with self.box(user="65534") as box:
            with pytest.raises(PermissionError):
                await box.write("/etc/owned", b"")
            await box.write("/etc/owned", b"", user="root")
            assert (await box.stat("/etc/owned")).uid == 0
            await box.write("/tmp/mine", b"mine")
            assert (await box.stat("/tmp/mine")).uid == 65534
