"""steersman: an event-sourced control plane for fleets of coding agents. This directory is the package.

    domain       what may happen, and why            (pure)
    projections  what readers see of what happened   (pure)
    application  one file per thing that can be asked, and the ports it needs; driving/ finds out what is outstanding,
                 effects/ has one file per thing that is then done
    adapters     one file or folder per outside system: the event log, views, git, agents
    http         the API: decode, call, encode
    ops          the processes and the command line; the only place that wires

A command goes down through http, application and domain into the log, and its answer comes
back up. Everything after that is the driver (application/driving/drive_runs.py): it reads the log and
drives what is not yet proved, at a wake-up, on a sweep and at start alike.
"""
