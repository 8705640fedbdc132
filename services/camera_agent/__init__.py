"""camera-agent: pulls RTSP streams, cuts them at keyframes without decoding, publishes the segments."""
