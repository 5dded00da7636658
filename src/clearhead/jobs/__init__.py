"""The jobs that a person comes for, each as one function: train, translate, evaluate, demo.

Wires the rooms below together, and is what the command line and `clearhead.train`
call. Decides nothing that a room below could decide.
"""
