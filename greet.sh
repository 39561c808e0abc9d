#!/bin/sh
# tool: Greet.
