"""The events and dead-letter reasons that decode counts, with their meaning."""

from lookout.video.health import CameraFault
from lookout.video.segments import Reason

#: events counted in `lookout_events_total`
EVENTS = {
    "segments": "segments decoded",
    "frames": "frames sampled from segments",
    "damaged_frames": "frames that lost bytes, or were predicted from damaged frames",
    "gaps": "epochs that ended, for example because of silence or a clock jump",
    "late": "segments whose whole time was already decided",
    "erased": "segments skipped because their time range was erased",
    "over_quota": "segments skipped because their camera had used up its quota",
    "two_cameras": "switches between two cameras that send under the same id",
    "in_two_partitions": "times that a camera id appeared in a second partition",
    "moved": "cameras that moved to another partition after partitions were added",
    **{f"camera_{cause}": f"incidents opened with the cause `{cause}`" for cause in CameraFault},
}
#: why a segment becomes a dead letter, in `lookout_dead_letters_total`
REASONS = {
    Reason.EMPTY.value: "a segment without bytes",
    Reason.UNREADABLE.value: "bytes that are not in an allowed container format, or are too damaged to read",
    Reason.NO_VIDEO.value: "a container without a video stream",
    Reason.NO_DECODER.value: "a codec that cannot be decoded",
    Reason.NO_KEYFRAME.value: "a segment that does not start at a keyframe",
    Reason.NO_FRAMES.value: "a segment in which no picture can be decoded",
    Reason.BYTES.value: "a segment of more than `LOOKOUT_SEGMENT_BYTES` bytes",
    Reason.DIMENSIONS.value: "pictures with more than `LOOKOUT_SEGMENT_PIXELS` pixels",
    Reason.LENGTH.value: "a segment with more pictures, or of more seconds, than allowed",
    Reason.MEMORY.value: "a segment whose decoding needed more memory than a decoder may use",
    Reason.POISON.value: "a segment that crashed or hung two decoders",
    Reason.REQUEST.value: "a request that the decoder rejected",
    "bad-uri": "a URI list that does not contain exactly one URI",
    "uri-refused": "a URI that may not be fetched",
    "uri-status": "the host answers with an error status instead of the segment",
    "uri-encoding": "the host sends the segment with a content encoding, such as gzip",
    "uri-away": "the camera's host has not responded for too long",
    "bad-captured-at": "a header `captured-at` that is not a time in milliseconds",
    "bad-labels": "a header with an invalid tenant or priority",
}
