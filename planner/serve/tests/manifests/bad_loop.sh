#!/bin/bash
for tp in 1 2; do vllm serve org/m -tp $tp & done
