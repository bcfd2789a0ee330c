"""Processes of one host share a GPU: trainings and evaluations side by side, a timing alone.

One lock per GPU, by its UUID. What trains or evaluates holds it shared and gives way between batches; what times holds it alone.
"""
