"""What decode counts."""

#: what is counted, in `lookout_events_total`
EVENTS = {
    "segments": "segments decoded",
    "frames": "frames sampled from them",
    "damaged_frames": "frames that lost bytes, or were predicted from such frames",
    "gaps": "streams that ended, by silence or by a jump of their clock",
    "late": "segments from before what was already written",
    "erased": "segments left out because their time was erased",
    "over_quota": "segments left out because their camera used up its quota",
    "two_cameras": "segments of another camera than the one before under the same id",
    "in_two_partitions": "times that a camera id was noticed in a second partition",
    "moved": "cameras that went to another partition after partitions were added",
}
