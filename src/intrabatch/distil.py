"""A trained model with message passing teaches a bare backbone (paper, appendix "Teacher Student Approach").

The student starts from its own initial weights and learns from the labels (its auxiliary cross-entropy, weight 1 unless
its settings say otherwise) and, beside them, from the teacher, who sees the same crops of the same batch and refines
them by message passing. The student's run folder is like any other, with one more file, `teacher.json`: the teacher
and what it teaches.

The paper names the three lessons and no more. Softening, and distances to angles as 1 to 2, are those of the works it
cites (Hinton et al. 2015; Park et al. 2019). Weights are those with the best MAP@R on validation classes of the
built-in images, one seed each: of 0.3, 1 and 3 for predictions, of 1, 10 and 100 for features and for relations.
Shapes: B samples, D embedding size, C classes, P pairs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import Config
from .data.image_set import ImageSet
from .devices import pick_device
from .errors import ConfigError, DataError, RunError, did_you_mean
from .model import Network
from .progress import Progress, Quiet
from .run import Run
from .train import Training, require_judge, require_spread
from .trained import restored_network

SOFTENING = 4.0
"""Predictions are compared at this temperature, on top of the heads' own."""
TEACHER_FILE = "teacher.json"


def predictions_loss(student_logits_BC: Tensor, teacher_logits_BC: Tensor) -> Tensor:
    """Kullback-Leibler divergence of softened class probabilities, times the squared temperature (Hinton et al.)."""
    student_BC = (student_logits_BC / SOFTENING).log_softmax(-1)
    teacher_BC = (teacher_logits_BC / SOFTENING).log_softmax(-1)
    return F.kl_div(student_BC, teacher_BC, reduction="batchmean", log_target=True) * SOFTENING**2


def features_loss(student_BD: Tensor, teacher_BD: Tensor) -> Tensor:
    """Huber loss between the student's embeddings and the teacher's refined features."""
    return F.huber_loss(student_BD, teacher_BD)


def relations_loss(student_BD: Tensor, teacher_BD: Tensor) -> Tensor:
    """Huber losses between distances, in units of their mean, and between angles of all triplets (Park et al.)."""
    distances = F.huber_loss(_distances(student_BD), _distances(teacher_BD))
    return distances + 2 * F.huber_loss(_angles(student_BD), _angles(teacher_BD))


def _distances(feats_BD: Tensor) -> Tensor:
    """The distance of every pair in the batch, divided by their mean."""
    distances_P = F.pdist(feats_BD)
    return distances_P / distances_P.mean().clamp_min(1e-12)


def _angles(feats_BD: Tensor) -> Tensor:
    """Cosines of the angles at the first sample between the second and the third (B, B, B)."""
    towards_BBD = F.normalize(feats_BD[None] - feats_BD[:, None], dim=-1)
    return towards_BBD @ towards_BBD.transpose(-1, -2)


@dataclass(frozen=True)
class Lesson:
    """A way of teaching: what student and teacher are compared by, and how."""

    loss: Callable[[Tensor, Tensor], Tensor]
    weight: float
    """Beside the student's own cross-entropy."""
    by_logits: bool = False
    """Compares class predictions; otherwise embeddings with refined features."""


LESSONS = {
    "predictions": Lesson(predictions_loss, weight=1.0, by_logits=True),
    "features": Lesson(features_loss, weight=100.0),
    "relations": Lesson(relations_loss, weight=100.0),
}


class Student(Network):
    """A bare network that also hears what its teacher makes of each batch; the teacher is no part of its state."""

    def __init__(self, network: Network, teacher: Network, how: str) -> None:
        nn.Module.__init__(self)
        self.embedder, self.loss, self.lesson = network.embedder, network.loss, LESSONS[how]
        self.fused = {}
        self.loss.weights["teacher"] = self.lesson.weight
        self._teacher = (teacher.eval().requires_grad_(False),)  # in a tuple, or it would be trained and saved too

    def fuse(self) -> None:
        super().fuse()
        self._teacher[0].fuse()

    def forward(self, images_B3HW: Tensor, labels_B: Tensor) -> dict[str, Tensor]:
        """The losses of a batch by name: "auxiliary" and "teacher"."""
        embeddings_BD = self.embeddings(images_B3HW)
        return self.losses(embeddings_BD, labels_B) | {"teacher": self._taught(images_B3HW, embeddings_BD)}

    def _taught(self, images_B3HW: Tensor, embeddings_BD: Tensor) -> Tensor:
        (teacher,) = self._teacher
        with torch.no_grad():
            theirs_BD = teacher.embeddings(images_B3HW).float()
        with torch.autocast(embeddings_BD.device.type, enabled=False):
            if not self.lesson.by_logits:
                return self.lesson.loss(embeddings_BD.float(), _refined(teacher, theirs_BD))
            assert self.loss.auxiliary is not None
            return self.lesson.loss(self.loss.auxiliary.logits(embeddings_BD.float()), _predicted(teacher, theirs_BD))


@torch.no_grad()
def _refined(teacher: Network, embeddings_BD: Tensor) -> Tensor:
    """The features after the last message-passing step."""
    assert teacher.loss.passing is not None
    refined_BD: Tensor = teacher.loss.passing(embeddings_BD)[-1]
    return refined_BD


@torch.no_grad()
def _predicted(teacher: Network, embeddings_BD: Tensor) -> Tensor:
    """Logits of the head on refined features."""
    assert teacher.loss.refined is not None
    return teacher.loss.refined.logits(teacher.loss.refine(embeddings_BD))


class Teaching(Training):
    """A training whose network has a teacher, and whose figures say which."""

    def __init__(self, run: Run, images: ImageSet, device: torch.device, progress: Progress) -> None:
        super().__init__(run, images, device, progress)
        self.taught = taught(run.path)
        teacher = restored_network(Run.open(Path(self.taught["teacher"]))).to(device)
        self.network = Student(self.network, teacher, self.taught["how"])

    def _final_figures(self, epoch: int) -> dict[str, Any]:
        figures = super()._final_figures(epoch)
        figures["protocol"] |= self.taught
        return figures


def distil(
    teacher: Path,
    how: str,
    images: ImageSet,
    out: Path,
    progress: Progress | None = None,
    config: Config | None = None,
) -> Run:
    """Train a student of the run `teacher` in the new folder `out`; returns the finished run.

    `config` is the student's, by default `student_config` of the teacher's.
    """
    taught_by = Run.open(teacher)
    config = config or student_config(taught_by.config)
    classes = images.only("train").classes
    _require_lesson(taught_by, how, config, classes)
    require_judge(config, images)
    require_spread(config, len(images.only("train")))
    taught_by.load_weights()  # before the folder is made: are they there?
    device = pick_device(config.train.device)
    run = Run.create(out, config, images, classes, str(device))
    run.write_json(TEACHER_FILE, {"teacher": str(teacher), "how": how, "teacher_weight": LESSONS[how].weight})
    return Teaching(run, images, device, progress or Quiet()).go()


def resume_distil(path: Path, images: ImageSet, progress: Progress | None = None) -> Run:
    """Go on with a student that was stopped or killed, from its last checkpoint."""
    run = Run.open(path)
    if not is_student(path):
        raise RunError(f"{path} has no {TEACHER_FILE}: it is no student; go on with: intrabatch train --resume {path}")
    state = run.load_checkpoint()
    teaching = Teaching(run, images, pick_device(run.config.train.device), progress or Quiet())
    if state is not None:
        teaching.restore(state)
    return teaching.go()


def is_student(path: Path) -> bool:
    """Whether the run folder is one that `distil` made; such a run goes on with `resume_distil`."""
    return (path / TEACHER_FILE).is_file()


def taught(path: Path) -> dict[str, Any]:
    """The teacher of the student at `path`, how it teaches, and with which weight."""
    found: dict[str, Any] = json.loads((path / TEACHER_FILE).read_text(encoding="utf-8"))
    return found


def student_config(teacher: Config) -> Config:
    """The teacher's settings without message passing; a teacher without auxiliary loss gives its student weight 1."""
    return replace(teacher, loss=replace(teacher.loss, messages=0.0, auxiliary=teacher.loss.auxiliary or 1.0))


def _require_lesson(teacher: Run, how: str, config: Config, classes: tuple[str, ...]) -> None:
    """Can this teacher teach these classes in this way?"""
    if how not in LESSONS:
        raise ConfigError(f"distil: unknown way to teach '{how}'{did_you_mean(how, LESSONS)}")
    if not teacher.config.loss.messages:
        raise ConfigError(
            f"{teacher.path} was trained without message passing (its loss.messages is 0) and has nothing to teach; "
            f"name a run with it"
        )
    if config.loss.messages or not config.loss.auxiliary:
        found = f"loss.messages is {config.loss.messages}, loss.auxiliary {config.loss.auxiliary}"
        raise ConfigError(f"distil: the student's {found}; expected 0 and more than 0: a student is a bare backbone")
    dims = config.model.dim, teacher.config.model.dim
    if how == "features" and dims[0] != dims[1]:
        raise ConfigError(
            f"distil: model.dim is {dims[0]}, but the teacher's features to imitate have {dims[1]} numbers"
        )
    if classes != teacher.classes:
        different = min(set(classes) ^ set(teacher.classes), default="their order")
        raise DataError(
            f"distil: the data has {len(classes)} training classes, the teacher {teacher.path} was trained on "
            f"{len(teacher.classes)} others (first difference: {different}); give the data and split it was trained on"
        )
