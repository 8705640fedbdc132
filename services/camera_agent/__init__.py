"""camera-agent: pulls RTSP streams, cuts them at keyframes without decoding, and publishes the segments."""
