import lookout

with lookout.Pipeline(questions=["Is anyone lying on the ground?"]) as pipeline:
    for verdict in pipeline.watch("clip.mp4"):
        if verdict.p_yes > 0.5:
            print(f"{verdict.time:.0f} s: {verdict.question} p(yes) = {verdict.p_yes:.2f}")
