"""Which folder of compiled kernels a judge's process takes."""

import subprocess
import sys
from pathlib import Path

from trustjudge_ray.judging import vllm_environment

HOLDER = (
    "import sys; from pathlib import Path; from trustjudge_ray.judging.vllm_environment import first_free;"
    "print(first_free(Path(sys.argv[1])).name, flush=True); sys.stdin.read()"
)


def test_processes_of_one_machine_share_no_folder_and_a_dead_one_s_is_taken_again(tmp_path: Path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as first, subprocess.Popen(command, **pipes) as second:
        taken = {first.stdout.readline().strip(), second.stdout.readline().strip()}
        assert taken == {"0", "1"}
        assert vllm_environment.first_free(tmp_path).name == "2"
        first.kill()
        first.wait()
        with subprocess.Popen(command, **pipes) as third:
            assert third.stdout.readline().strip() in taken
            third.stdin.close()
        second.stdin.close()
