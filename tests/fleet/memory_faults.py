"""Questions about the past while holders, Redis and the durable tier die: `make test-memory-faults`.

Two holders are processes with half of the chapters each; both copy them into a durable folder. After every
fault, and while it lasts, the question is asked, by a reader that lives on or by a new one. An answer must
equal, to the bit, the one in this process over the chapters that it names; it must name every chapter that
a live holder or the durable tier has. In the end a range is erased everywhere, and every file is searched
for its bytes.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

from lookout.local import RedisServer, free_ports
from lookout.models.engines.transformers.memory import MemoryAnswer, ask
from lookout.past.chapters.announcing import ScenesDirectory
from lookout.past.chapters.durable import DurableTier, Uploader
from lookout.past.chapters.reading import ChapterSources, Holders
from lookout.past.memory import Past, RangeCache, RetrievalSettings
from lookout.past.memory.chapters import ChapterFolder
from lookout.past.memory.past import fetch_from
from lookout.runtime.net import without_security
from lookout.runtime.store import Directory
from lookout.services.recall.asking import Asker, NothingRememberedError, PastQuestion
from tests.changed_settings import store_settings
from tests.chapters_world import engine, fill, folder
from tests.eventually import eventually

LITTLE = RetrievalSettings(frames=5, span=4)
QUESTION = PastQuestion("Is anyone lying?", words=3, frames=5)


@dataclass
class Tally:
    """What came of the questions: asked, equal, and chapters that were not read although they were there."""

    asked: int = 0
    equal: int = 0
    lost: int = 0
    wrong: list[str] = field(default_factory=list)


class HolderProcess:
    """A holder that can be killed and started again at its address."""

    def __init__(self, root: Path, name: str, redis_url: str, tier: Path) -> None:
        self.root, self.name, self._redis, self._tier = root, name, redis_url, tier
        (self.port,) = free_ports(1)
        self._process: subprocess.Popen[str] | None = None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, and wait until it serves."""
        command = [sys.executable, "-m", "tests.fleet.chapter_holder", str(self.root), self.name]
        self._process = subprocess.Popen(
            [*command, str(self.port), self._redis, str(self._tier)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        stream = self._process.stdout
        assert stream is not None
        eventually(lambda: "ready" in stream.readline() or self._process is None)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None


class Trial:
    """One world of chapters, and what is done to it."""

    def __init__(self, root: Path, stack: ExitStack, seed: int) -> None:
        self.draw, self.root, self.tier = random.Random(seed), root, root / "tier"
        self.whole = self._written(root / "whole")
        self.redis = stack.enter_context(RedisServer())
        self.redis.start()
        names = [facts.name for facts in self.whole.chapters()]
        self.holders = []
        for number in range(2):
            own = root / f"holder-{number}"
            for facts in self.whole.chapters():
                if names.index(facts.name) % 2 == number:
                    shutil.copytree(facts.path, own / facts.path.parent.name / facts.path.name)
            holder = HolderProcess(own, f"prefill-{number}", self.redis.url, self.tier)
            stack.callback(holder.kill)
            holder.start()
            self.holders.append(holder)
        Uploader(DurableTier(str(self.tier)), self.whole).round()  # the first faults may come at once
        self.tally, self._stack = Tally(), stack
        self.asker = self._reader()

    def _written(self, root: Path) -> ChapterFolder:
        chapters = folder(root)
        for number in range(6):
            fill(chapters, range(number * 5, number * 5 + 5), seed=number)
            chapters.seal("gate")
        return chapters

    def _reader(self) -> Asker:
        directory = Directory(self.redis.url, store_settings(redis_retry_s=0.05))
        client = without_security().redis_client(self.redis.url, socket_timeout=0.5, retry=None)
        sources = ChapterSources(
            Holders(list_s=5.0, read_s=5.0),
            directory,
            ScenesDirectory(directory, client),
            replicas=[f"127.0.0.1:{holder.port}" for holder in self.holders],
            durable=DurableTier(str(self.tier)),
        )
        for close in (directory.close, client.close, sources.close):
            self._stack.callback(close)
        return Asker(engine(), sources, model_digest="m1", retrieval=LITTLE, cache_bytes=1 << 20)

    # Faults; each returns what ends it.

    def fault(self) -> str:
        """Do one thing at random."""
        choice = self.draw.choice(("kill", "kill", "wipe", "redis", "tier", "recall", "start"))
        holder = self.draw.choice(self.holders)
        away = self.root / "away"
        if choice == "kill" and holder.alive:
            holder.kill()
        elif choice == "kill" or (choice == "start" and not holder.alive):
            holder.start()
        elif choice == "wipe" and self.redis.alive:
            client = without_security().redis_client(self.redis.url)
            with suppress(Exception):
                client.flushall()
            client.close()
        elif choice == "redis":
            if self.redis.alive:
                self.redis.kill()  # `close` would remove the folder that it starts in again
            else:
                self.redis.start()
        elif choice == "tier":
            self._move_tier(away)
        elif choice == "recall":
            self.asker = self._reader()
        return choice

    def _move_tier(self, away: Path) -> None:
        """Take the tier away, or bring it back; a holder may have begun another one meanwhile."""
        if self.tier.exists() and away.exists():
            shutil.rmtree(away)
        elif self.tier.exists():
            self.tier.rename(away)
        else:
            away.rename(self.tier)

    def there(self) -> set[str]:
        """The chapters that a live holder or the tier has."""
        roots = [holder.root for holder in self.holders if holder.alive]
        return {
            facts.name
            for facts in self.whole.chapters()
            if any((self.tier / "gate" / facts.path.name).glob("head-*.bin"))
            or any((root / facts.path.parent.name / facts.path.name).exists() for root in roots)
        }

    def ask(self) -> None:
        """Ask, and compare."""
        expected = self.there()
        self.tally.asked += 1
        try:
            asked = self.asker.ask("gate", QUESTION)
        except NothingRememberedError:
            self.tally.lost += len(expected)
            self.tally.equal += not expected
            return
        names = {chapter.name for chapter in asked.chapters}
        self.tally.lost += len(expected - names)
        if _facts(asked.answer) == _facts(self._here(names)):
            self.tally.equal += 1
        else:
            self.tally.wrong.append(str(sorted(names)))

    def _here(self, names: set[str]) -> MemoryAnswer:
        reading = [self.whole.read(facts.name) for facts in self.whole.chapters() if facts.name in names]
        fetch = fetch_from({chapter.name: files for chapter, files in reading})
        past = Past([chapter for chapter, _ in reading], RangeCache(fetch, 1 << 30), LITTLE)
        return ask(engine(), past, QUESTION.text, describe=3)

    def erase(self) -> int:
        """Erase one block everywhere; the files in which a row of it is still found."""
        needles = []
        (facts, *_) = self.whole.chapters()
        chapter, files = self.whole.read(facts.name)
        ranges = RangeCache(fetch_from({facts.name: files}), 1 << 30)
        past = Past([chapter], ranges, RetrievalSettings(frames=10**6))
        begin = int(past.times_us[2])
        # From the second layer on: in the first one K and V of a label are those of every such label.
        for layer in range(1, chapter.head.shape.layers):
            choice = past.choose(layer, torch.ones(chapter.head.shape.width))
            rows = torch.cat(past.read(choice, layer))
            needles += [
                row.numpy().tobytes()
                for frame, row in zip(choice.frames, rows, strict=True)
                if begin <= past.times_us[frame] < begin + 2_000_000
            ]
        assert needles
        for holder in self.holders:
            holder.kill()
            uploader = Uploader(DurableTier(str(self.tier)), own := folder(holder.root))
            uploader.round()
            own.erase("gate", begin, begin + 2_000_000)
            uploader.round()
        self.whole.erase("gate", begin, begin + 2_000_000)
        return sum(
            any(needle in path.read_bytes() for needle in needles)
            for path in self.root.rglob("*")
            if path.is_file()
        )


def _facts(answer: MemoryAnswer) -> list[object]:
    return [answer.yes_logit, answer.no_logit, answer.text, answer.evidence]


def main() -> int:
    """Run; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        trial = Trial(root, stack, options.seed)
        trial.ask()
        for number in range(options.faults):
            print(number, trial.fault(), end=" ", flush=True)
            trial.ask()
        away = root / "away"
        if away.exists() and not trial.tier.exists():
            away.rename(trial.tier)
        elif away.exists():
            shutil.rmtree(away)
        found = trial.erase()
    tally = trial.tally
    print()
    for wrong in tally.wrong:
        print("not equal over", wrong)
    print(
        json.dumps(
            {"asked": tally.asked, "equal": tally.equal, "lost": tally.lost, "erased_bytes_found": found}
        )
    )
    return int(bool(tally.asked != tally.equal or tally.lost or found))


if __name__ == "__main__":
    sys.exit(main())
