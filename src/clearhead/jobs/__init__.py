"""The jobs that users run, each as one function: train, translate, evaluate, demo.

Wires the packages below together, and is what the command line and `clearhead.train`
call. Decides nothing that a package below could decide.
"""
