#!/bin/bash
if true; then
  echo "no fi"
