class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("init boom")

    def execute(self, requests):
        return []
